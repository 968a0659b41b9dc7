from __future__ import annotations

import pytest

from gpulab.config import Settings
from gpulab.hardware.devices import Device, DriverState, Memory, Process, Snapshot
from gpulab.telemetry import series
from gpulab.telemetry.store import Store

NOON = 1_800_000_000.0
GIB = 2**30


def device(percent: float, *sizes: int, uuid: str = "GPU-a") -> Device:
    processes = tuple(Process(100 + place, "ann", "python", size) for place, size in enumerate(sizes))
    return Device(
        0, uuid, "T4", memory=Memory(80 * GIB, sum(sizes)), gpu_percent=percent, processes=processes
    )


class Written:
    def __init__(self, settings: Settings) -> None:
        self.now = NOON
        self.store = Store(settings, clock=lambda: self.now)

    def add(self, *devices: Device, step: float = 1.0) -> None:
        assert self.store.append(Snapshot(self.now, DriverState(), devices))
        self.now += step


@pytest.fixture
def written(settings: Settings) -> Written:
    return Written(settings)


def test_without_a_history_there_is_nothing_and_no_trouble(settings: Settings) -> None:
    assert series.samples(settings, 0) == series.reduced(settings, 0) == {}
    assert series.processes(settings, 0) == series.leases(settings, 0) == series.usage(settings, 0) == []
    assert series.rollups(settings, 0) == series.rollups(settings, 0, level="hour") == []
    assert series.trouble(settings) is None


def test_samples_are_of_the_range_and_of_the_devices_asked_for(settings: Settings, written: Written) -> None:
    for second in range(10):
        written.add(device(second), device(50, uuid="GPU-b"))
    found = series.samples(settings, NOON + 3, NOON + 5, uuids=["GPU-a"])
    assert {uuid: [s.gpu_percent for s in samples] for uuid, samples in found.items()} == {"GPU-a": [3, 4, 5]}


def test_a_process_has_a_row_when_it_comes_grows_and_goes_and_one_each_minute(
    settings: Settings, written: Written
) -> None:
    written.add(device(0))
    for second in range(100):
        written.add(device(0, 2 * GIB + (GIB if second >= 30 else second * 2**12)))
    written.add(device(0))
    rows = series.processes(settings, NOON, NOON + 200)
    assert [(row.time - NOON, (row.memory_bytes or 0) >> 30, row.gone) for row in rows] == [
        (1, 2, False),
        (31, 3, False),
        (60, 3, False),
        (101, 3, True),
    ]
    assert rows[0][1:7] == ("GPU-a", 100, None, "ann", "python", "compute")


def test_a_range_begins_with_the_processes_that_were_there(settings: Settings, written: Written) -> None:
    for _ in range(50):
        written.add(device(0, GIB, 2 * GIB))
    for _ in range(50):
        written.add(device(0, GIB))
    rows = series.processes(settings, NOON + 40, NOON + 45)
    assert [(row.pid, row.time) for row in rows] == [(100, NOON), (101, NOON)]
    later = series.processes(settings, NOON + 55, NOON + 99, uuid="GPU-a")
    assert [(row.pid, row.time, row.gone) for row in later] == [(100, NOON, False), (100, NOON + 60, False)]
    assert series.processes(settings, NOON, NOON + 99, uuid="GPU-b") == []


@pytest.mark.parametrize(("span", "step"), [(600, 1.0), (4000, 2.0), (20_000, 2.0)])
def test_a_curve_keeps_means_peaks_and_gaps_at_every_length(
    settings: Settings, written: Written, span: int, step: float
) -> None:
    while written.now < NOON + span:
        begun = NOON + 0.4 * span <= written.now < NOON + 0.4 * span + step
        written.add(device(100 if begun else 20, GIB), step=step)
        if NOON + 0.5 * span <= written.now < NOON + 0.5 * span + step:
            written.now += 0.2 * span
    curve = series.reduced(settings, NOON, NOON + span, points=100)["GPU-a"]
    assert 75 <= len(curve) <= 83
    gaps = [point for point in curve if point.gpu_percent is None]
    assert len(gaps) == 1
    assert 0.5 * span < gaps[0].time - NOON < 0.7 * span
    assert max(point.gpu_max or 0 for point in curve) == 100
    assert {point.gpu_percent for point in curve if point.gpu_max == 20} == {20}
    assert {point.memory_max_bytes for point in curve} == {GIB, None}
    assert curve[-1].time > NOON + 0.97 * span
    assert [point.time for point in curve] == sorted(point.time for point in curve)


def test_a_curve_of_what_is_older_than_the_raw_samples_comes_from_minutes(
    settings: Settings, written: Written
) -> None:
    for _ in range(700):
        written.add(device(70, GIB))
    written.now += 26 * 3600
    for _ in range(14):
        written.add(device(0), step=60)
    curve = series.reduced(settings, NOON, NOON + 600, points=100)["GPU-a"]
    assert [point.gpu_percent for point in curve] == [70] * 10


def test_samples_that_are_closer_while_somebody_watches_weigh_no_more_in_a_curve(
    settings: Settings, written: Written
) -> None:
    for _ in range(30):
        for step in (*[1.0] * 7, 0.2):
            written.add(device(0), step=step)
        for step in (*[0.2] * 9, 1.0):
            written.add(device(100), step=step)
    points = series.reduced(settings, NOON, NOON + 300, points=30)["GPU-a"]
    mean = sum(point.gpu_percent or 0 for point in points) / len(points)
    assert mean == pytest.approx(100 * 2.0 / 10, abs=3)


def test_a_clock_that_once_ran_ahead_takes_no_newest_minute_from_a_curve(
    settings: Settings, written: Written
) -> None:
    written.now = NOON + 3e8
    for _ in range(130):
        written.add(device(10))
    written.now = NOON
    for _ in range(3650):
        written.add(device(50))
    points = series.reduced(settings, NOON, NOON + 3650)["GPU-a"]
    assert NOON + 3650 - points[-1].time < 13
