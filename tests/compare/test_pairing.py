"""One size with both sides: what is recorded around the repeats of the GPU side.

There is no GPU here, so a second CPU worker is entered as the GPU side; the driver that lists the
processes is the simulated one. No figure of it is shown to anybody.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpulab.compare.conditions.provenance import describe_machine
from gpulab.compare.pairing import Pairing
from gpulab.compare.results.records import BackendRecord, SizeRun, Strangers
from gpulab.compare.workers.client import WorkerProcess
from gpulab.compare.workers.crew import Crew, made, save_arrays
from gpulab.compare.workloads.dbscan import WORKLOADS
from gpulab.hardware.observe import observe

CPU, AS_GPU, SIZE = "sklearn-auto", "sklearn-ball-tree", 300


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    monkeypatch.setenv("GPULAB_SIMULATE", str(list_processes(tmp_path, [])))
    crew = Crew(WORKLOADS["dbscan"], describe_machine())
    mask = {"CUDA_VISIBLE_DEVICES": observe(max_age=0).devices[0].uuid or ""}
    for name, side in ((CPU, "cpu"), (AS_GPU, "gpu")):
        environment = {**os.environ, **mask}
        crew.workers[name] = WorkerProcess("dbscan", name, time.monotonic() + 120, environment)
        crew.records[name] = BackendRecord(name, name, side, "scikit-learn", "ready")  # type: ignore[arg-type]
        crew.history[name] = []
        crew.workers[name].ask("start")
    yield crew
    crew.close()


def list_processes(folder: Path, pids: list[int]) -> Path:
    file = folder / "machine.json"
    listed = [{"gpu": 0, "pid": pid, "memory": "1GiB"} for pid in pids]
    new = folder / "machine.new"
    new.write_text(json.dumps({"devices": [{"profile": "h100"}], "processes": listed}))
    os.replace(new, file)
    return file


def measured(crew: Crew, folder: Path, tell: Callable[[str], None] = [].append) -> SizeRun:
    data = WORKLOADS["dbscan"].make_data(SIZE, 0)
    save_arrays(data, made(str(folder / "run")))
    run = SizeRun(SIZE, "not_run", parameters=WORKLOADS["dbscan"].parameters(SIZE))
    pairing = Pairing(crew, run, str(folder / "run"), tell)
    pairing.measure(data, time.monotonic() + 1)
    return pairing.record()


def test_a_gpu_that_only_our_worker_uses_has_no_strangers(crew: Crew, tmp_path: Path) -> None:
    list_processes(tmp_path, [crew.workers[AS_GPU].pid])
    run = measured(crew, tmp_path)
    assert run.strangers == {AS_GPU: Strangers(0, 0)}
    assert {measurement.backend for measurement in run.measurements} == {CPU, AS_GPU}


def test_a_stranger_who_comes_while_the_sides_alternate_is_recorded(crew: Crew, tmp_path: Path) -> None:
    worker = crew.workers[AS_GPU].pid
    list_processes(tmp_path, [worker])

    def join_during_the_repeats(step: str) -> None:
        if step == AS_GPU:
            list_processes(tmp_path, [worker, os.getppid()])

    run = measured(crew, tmp_path, join_during_the_repeats)
    assert run.strangers == {AS_GPU: Strangers(0, 1)}


def test_a_list_without_our_worker_leaves_it_unknown(crew: Crew, tmp_path: Path) -> None:
    found = measured(crew, tmp_path).strangers[AS_GPU]
    assert (found.before, found.after) == (None, None)
    assert "lacks our own" in found.reason
