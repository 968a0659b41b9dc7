"""Whole comparisons with the real scikit-learn on a machine without a GPU, or with simulated ones."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import gpulab
from gpulab.compare.result import Result
from gpulab.errors import RequestError, WorkloadError

AUTO = "sklearn-auto"


@pytest.fixture(scope="module")
def result() -> Result:
    return gpulab.compare("dbscan", sizes=[1500, 500], budget=12, progress=False)


def test_the_cpu_side_is_measured_at_every_size_with_intervals(result: Result) -> None:
    assert result.sizes == (500, 1500)
    for run in result.runs:
        assert run.state == "measured"
        assert run.best_cpu is not None
        summary = result.summary(run.best_cpu, run.size)
        assert summary is not None
        assert summary.low is not None
        assert summary.high is not None
        assert 0 < summary.low <= summary.median <= summary.high
        assert run.facts["neighbours_per_point"] > 1
        assert run.arrays == {"points": f"float32 ({run.size}, 2)"}


def test_every_cpu_backend_agrees_with_the_best_one(result: Result) -> None:
    for run in result.runs:
        assert {check.state for check in run.parity} == {"same"}
        assert {check.candidate for check in run.parity} | {run.best_cpu} == {
            backend.name for backend in result.backends if backend.side == "cpu"
        }


def test_the_baseline_is_the_fastest_of_the_race(result: Result) -> None:
    for run in result.runs:
        if run.race:
            assert run.best_cpu == min(run.race, key=lambda name: statistics.median(run.race[name]))


def test_without_a_gpu_the_column_says_why_and_no_speedup_appears_anywhere(result: Result) -> None:
    assert result.backend("cuml").state == "unavailable"
    assert result.backend("cuml").reason
    assert result.speedup is None
    assert result.speedup_reason
    assert result.break_even_calls is None
    assert result.crossover is None
    for text in (str(result.table()), result._repr_html_(), result.verdict, repr(result)):
        assert "speedup" not in text.lower()
        assert "times as fast" not in text
    assert "No verdict" in result.verdict


def test_the_provenance_names_versions_threads_and_circumstances_but_not_the_host(result: Result) -> None:
    assert result.origin == "measured"
    assert result.seed == 0
    assert result.gpulab == gpulab.__version__
    assert result.backend(AUTO).versions["sklearn"]
    assert result.backend(AUTO).threads == 1
    assert result.machine.usable_cores == len(os.sched_getaffinity(0))
    assert os.uname().nodename not in json.dumps(result.to_dict())


def test_the_first_call_stands_apart_with_the_import(result: Result) -> None:
    first = result.first_call[AUTO]
    assert first.import_seconds is not None
    assert first.call_seconds is not None
    assert first.warm_seconds is not None
    assert first.import_seconds > first.warm_seconds > 0
    assert "cuml" not in result.first_call


def test_simulated_gpus_compute_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "2xh100")
    result = gpulab.compare("dbscan", sizes=[300], backends=[AUTO, "cuml"], budget=5, progress=False)
    assert result.machine.simulated
    assert "simulated GPUs cannot compute" in result.backend("cuml").reason
    assert result.speedup is None
    table = str(result.table())
    assert "simulated GPUs cannot compute" in table
    assert "H100" not in table, "no GPU is named that measured nothing"


def test_sizes_that_break_the_budget_or_do_not_fit_are_not_run_and_the_others_stand() -> None:
    result = gpulab.compare("dbscan", sizes=[400, 4e6, 1e11], backends=[AUTO], budget=15, progress=False)
    small, long, large = result.runs
    assert small.measurements
    assert (long.state, long.measurements) == ("not_run", ())
    assert "of the budget are left; allow a larger budget" in long.reason
    assert "TiB" in large.reason
    assert "choose a smaller size" in large.reason
    assert f"not run: {long.reason}" in str(result.table())


def test_only_gpu_backends_without_a_gpu_is_one_sentence() -> None:
    with pytest.raises(WorkloadError, match=r"No backend of dbscan can run here \(cuml: "):
        gpulab.compare("dbscan", sizes=[100], backends=["cuml"], budget=5, progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backends": ["sklern"]}, "no backend 'sklern' in dbscan; choose from: sklearn-auto, "),
        ({"backends": []}, "no backend to measure; choose from: sklearn-auto"),
        ({"sizes": ["lots"]}, "'lots' is not a size"),
        ({"sizes": [0]}, "from 1 to"),
        ({"budget": 0}, "above 0 and below 1e9, not 0"),
        ({"budget": float("nan")}, "above 0 and below 1e9, not nan"),
        ({"seed": -1}, "seed is a whole number"),
    ],
)
def test_wrong_requests_say_what_exists(options: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        gpulab.compare("dbscan", **options)  # type: ignore[arg-type]


def test_an_unknown_workload_says_which_there_are() -> None:
    with pytest.raises(RequestError, match="no workload 'dbskan'; choose one of: dbscan"):
        gpulab.compare("dbskan")


class Running:
    """A comparison in a process of its own, with two sizes of which the second lasts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.saved = folder, folder / "result.json"
        script = (
            "import gpulab, sys\n"
            f"result = gpulab.compare('dbscan', sizes=[300, 100000], backends=['{AUTO}'], budget=120)\n"
            f"result.save({str(self.saved)!r})\n"
        )
        environment = {**os.environ, "TMPDIR": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, text=True
        )

    def wait_for(self, pattern: str) -> psutil.Process:
        """The worker, once this file of the comparison is there."""
        deadline = time.monotonic() + 90
        while not list(self.folder.glob(f"gpulab-compare-*/{pattern}")):
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        children = psutil.Process(self.process.pid).children()
        return next(child for child in children if "gpulab.compare.workers.worker" in child.cmdline())

    def result(self) -> Result:
        assert self.process.wait(60) == 0
        return Result.load(self.saved)


def test_a_worker_killed_midway_costs_its_size_and_not_the_result(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.wait_for("1/points.npy").send_signal(signal.SIGKILL)
    result = running.result()
    assert result.runs[0].state == "measured"
    assert "was killed (SIGKILL)" in result.runs[1].failures[AUTO]
    assert result.backend(AUTO).state == "failed"


def test_an_interrupt_keeps_what_is_done_and_leaves_no_process(tmp_path: Path) -> None:
    running = Running(tmp_path)
    worker = running.wait_for(f"1/{AUTO}/labels.npy")
    running.process.send_signal(signal.SIGINT)
    result = running.result()
    assert not worker.is_running()
    assert result.interrupted
    assert [run.state for run in result.runs] == ["measured", "interrupted"]
    assert "Interrupted" in str(result.table())
    assert not list(tmp_path.glob("gpulab-compare-*")), "its files are gone as well"
