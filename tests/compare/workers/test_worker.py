"""A real worker process, and what becomes of the ways in which one can end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpulab.compare.workers.client import WorkerProcess
from gpulab.compare.workloads.dbscan import WORKLOADS
from gpulab.errors import WorkloadError

SIZE = 2000
LONG = 10**6
"""Repeats that would take an hour."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    np.save(folder / "points.npy", WORKLOADS["dbscan"].make_data(SIZE, 0)["points"])
    return folder


@pytest.fixture
def worker(folder: Path) -> Iterator[WorkerProcess]:
    """For a test that ends it."""
    yield from started(folder)


@pytest.fixture(scope="module")
def steady(folder: Path) -> Iterator[WorkerProcess]:
    """For tests that leave it alive."""
    yield from started(folder)


def started(folder: Path) -> Iterator[WorkerProcess]:
    process = WorkerProcess("dbscan", "sklearn-auto", time.monotonic() + 120)
    process.ask("start")
    process.ask("load", folder=str(folder), parameters=WORKLOADS["dbscan"].parameters(SIZE))
    yield process
    process.close()


def gone(pid: int) -> bool:
    """The process has ended; one that nobody has waited for yet counts as ended."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_worker_answers_with_samples_and_leaves_its_results_as_files(
    steady: WorkerProcess, tmp_path: Path
) -> None:
    assert steady.ask("verify", folder=str(tmp_path))["not_placed"] is None
    assert len(np.load(tmp_path / "labels.npy")) == SIZE
    samples = steady.block(3, warm_up=True)
    assert len(samples) == 3
    assert all(0 < sample.compute_seconds <= sample.end_to_end_seconds for sample in samples)
    assert all(sample.host_to_device_seconds is None for sample in samples)


def test_starting_says_versions_threads_and_what_the_import_took() -> None:
    process = WorkerProcess("dbscan", "sklearn-ball-tree-threads", time.monotonic() + 60)
    try:
        started = process.ask("start")
    finally:
        process.close()
    assert started["versions"].keys() >= {"sklearn", "numpy", "scipy"}
    assert started["threads"] == len(os.sched_getaffinity(0))
    assert started["import_seconds"] > 0


def test_a_failure_inside_is_a_reason_and_the_worker_goes_on(steady: WorkerProcess, folder: Path) -> None:
    steady.ask("load", folder=str(folder), parameters={"eps": -1.0, "min_samples": 5})
    with pytest.raises(WorkloadError, match=r"sklearn-auto failed with InvalidParameterError: .*eps"):
        steady.block(1, warm_up=False)
    steady.ask("load", folder=str(folder), parameters=WORKLOADS["dbscan"].parameters(SIZE))
    assert len(steady.block(1, warm_up=False)) == 1


def test_a_worker_that_is_killed_in_the_middle_of_its_work_is_a_reason(worker: WorkerProcess) -> None:
    killer = threading.Timer(0.3, os.kill, (worker.pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(WorkloadError, match=r"sklearn-auto was killed .*memory"):
        worker.block(LONG, warm_up=False)
    killer.join()
    assert not worker.alive
    with pytest.raises(WorkloadError, match="was killed"):
        worker.ask("start")


def test_a_worker_that_is_late_is_ended_and_says_so_and_closing_it_again_is_fine(
    worker: WorkerProcess,
) -> None:
    worker.deadline = time.monotonic() + 0.3
    with pytest.raises(WorkloadError, match="was stopped: its call was not done when the time was up"):
        worker.block(LONG, warm_up=False)
    assert not worker.alive
    assert gone(worker.pid)
    worker.close()
    worker.close()


def test_a_worker_that_cannot_begin_says_its_last_line() -> None:
    process = WorkerProcess("dbscan", "no-such-backend", time.monotonic() + 60)
    try:
        with pytest.raises(WorkloadError, match="ended by itself with code 1: StopIteration"):
            process.ask("start")
    finally:
        process.close()
