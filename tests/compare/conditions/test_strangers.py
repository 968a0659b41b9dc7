"""Who else computes on a GPU, as the driver of a simulated machine lists it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulab.compare.conditions.strangers import around, strangers_on, used_device
from gpulab.compare.results.records import Strangers
from gpulab.compare.workers.client import WorkerProcess
from gpulab.hardware.devices import Device, DriverState, Process, Snapshot
from gpulab.hardware.observe import observe

GPU = Device(0, "GPU-6f0c12ab-0000-1111-2222-333344445555", "Example GPU")
OTHER = Device(1, "GPU-6f0c99ff-0000-1111-2222-333344445555", "Example GPU")
SLICE = Device(0, "MIG-01234567-0000-1111-2222-333344445555", "Example slice", kind="mig")
DEVICES = (GPU, OTHER, SLICE)
DIGITS = "6f0c12ab000011112222333344445555"


@pytest.mark.parametrize(
    ("mask", "digits", "device"),
    [
        (GPU.uuid, None, GPU),
        ("GPU-6f0c9", None, OTHER),
        (f"{OTHER.uuid},{GPU.uuid}", DIGITS, OTHER),
        (SLICE.uuid, DIGITS, SLICE),
        ("0", DIGITS, GPU),
        (None, DIGITS, GPU),
        (None, "6f0c12", GPU),
        (None, "6f0c", None),
        ("GPU-6f0c", None, None),
        ("GPU-other", DIGITS, None),
        ("0", None, None),
        (None, "", None),
    ],
)
def test_the_device_is_named_by_the_mask_or_by_cuda_and_by_nothing_that_fits_two(
    mask: str | None, digits: str | None, device: Device | None
) -> None:
    assert used_device(DEVICES, mask, digits) == device


def count(processes: list[Process] | None, own: set[int], *, comparable: bool = True) -> int | str:
    device = GPU._replace(processes=None if processes is None else tuple(processes))
    return strangers_on(device, 10, own, comparable=comparable)


def test_workers_this_process_and_the_desktop_are_no_strangers() -> None:
    own = [Process(10), Process(11), Process(os.getpid())]
    assert count(own, {10, 11}) == 0
    assert count([*own, Process(12, type="graphics")], {10, 11}) == 0
    assert count([*own, Process(12), Process(13)], {10, 11}) == 2


def test_a_list_without_the_worker_proves_nothing() -> None:
    assert "lacks our own" in str(count([], {10}))
    assert "lacks our own" in str(count([Process(12)], {10}))


def test_no_list_and_no_device_are_unknown_and_not_none() -> None:
    assert count(None, {10}) == "the driver did not list the processes on it"
    assert "which of the driver's GPUs" in str(strangers_on(None, 10, {10}, comparable=True))


def test_in_a_container_only_a_list_without_room_for_a_stranger_says_something() -> None:
    foreign = [Process(70001), Process(70002)]
    assert count(foreign, {10, 11}, comparable=False) == 0
    assert "cannot be told from our own" in str(count(foreign, {10}, comparable=False))
    assert "lacks our own" in str(count([], {10}, comparable=False))


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[int]], Snapshot]:
    """A simulated machine with two GPUs; the processes on the first are what the test says."""
    file = tmp_path / "machine.json"
    monkeypatch.setenv("GPULAB_SIMULATE", str(file))

    def look(pids: list[int]) -> Snapshot:
        listed: list[dict[str, Any]] = [{"gpu": 0, "pid": pid, "memory": "1GiB"} for pid in pids]
        file.write_text(json.dumps({"devices": [{"profile": "h100", "count": 2}], "processes": listed}))
        return observe(max_age=0)

    return look


@pytest.fixture
def worker(processes: Callable[[list[int]], Snapshot]) -> Iterator[WorkerProcess]:
    """A real process whose mask names the first simulated GPU; it is asked nothing."""
    mask = {"CUDA_VISIBLE_DEVICES": processes([]).devices[0].uuid or ""}
    started = WorkerProcess("dbscan", "sklearn-auto", time.monotonic() + 60, {**os.environ, **mask})
    yield started
    started.close()


def test_a_stranger_who_comes_during_the_repeats_is_seen_in_what_the_driver_lists(
    processes: Callable[[list[int]], Snapshot], worker: WorkerProcess
) -> None:
    sides, own = {"cuml": worker}, {worker.pid}
    alone, joined = processes([worker.pid]), processes([worker.pid, os.getppid()])
    assert around(sides, own, alone, alone) == {"cuml": Strangers(0, 0)}
    assert around(sides, own, alone, joined) == {"cuml": Strangers(0, 1)}


def test_a_driver_that_stops_answering_leaves_the_second_number_unknown(
    processes: Callable[[list[int]], Snapshot], worker: WorkerProcess
) -> None:
    silent = Snapshot(0.0, DriverState("unresponsive", message="it does not answer"))
    found = around({"cuml": worker}, {worker.pid}, processes([worker.pid]), silent)["cuml"]
    assert found == Strangers(0, None, "the driver did not answer")
