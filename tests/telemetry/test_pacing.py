"""When samples are taken, on a clock that stands still unless somebody waits."""

from __future__ import annotations

import itertools
import time

import pytest

from gpulab.telemetry.sampling.pacing import Pace
from gpulab.telemetry.sampling.wake import Stop, Wake


class Clock:
    """Time passes by waiting only, and whoever works tells how long it took."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Ear(Wake):
    """Somebody asks at certain instants."""

    def __init__(self, clock: Clock, asked: tuple[float, ...] = ()) -> None:
        self.clock = clock
        self.asked = list(asked)

    def wait(self, seconds: float) -> bool:
        if self.asked and self.asked[0] < self.clock.now + seconds:
            self.clock.now = max(self.clock.now, self.asked.pop(0))
            return True
        self.clock.now += seconds
        return False


class Rest(Stop):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def wait(self, seconds: float) -> bool:
        self.clock.now += seconds
        return False


def instants(
    *periods: float, work: float = 0.0, asked: tuple[float, ...] = (), slow: float | None = None
) -> list[float]:
    """When the samples are taken, in seconds since the first one; the first takes `slow` seconds."""
    clock = Clock()
    pace = Pace(Ear(clock, tuple(1000 + moment for moment in asked)), Rest(clock), clock)
    found = [clock.now - 1000]
    for number, period in enumerate(periods):
        clock.now += work if slow is None or number else slow
        pace.wait(period)
        found.append(clock.now - 1000)
    return found


def test_a_sample_that_takes_its_time_shifts_none_after_it() -> None:
    assert instants(*[1.0] * 100, work=0.3) == pytest.approx(range(101))
    assert instants(*[0.2] * 50, work=0.05) == pytest.approx([number / 5 for number in range(51)])


def test_those_missed_are_not_made_up_and_the_beat_stays() -> None:
    assert instants(*[1.0] * 3, slow=3.4) == pytest.approx([0, 3.4, 4, 5])
    assert instants(*[1.0] * 3, slow=3.0) == pytest.approx([0, 3, 4, 5])


def test_who_asks_gets_a_sample_at_once_and_the_beat_stays() -> None:
    assert instants(*[1.0] * 4, asked=(1.5,)) == pytest.approx([0, 1, 1.5, 2, 3])


def test_who_asks_all_the_time_gets_five_a_second() -> None:
    found = instants(*[1.0] * 20, asked=tuple(number / 1000 for number in range(4000)))
    gaps = [after - before for before, after in itertools.pairwise(found)]
    assert min(gaps) >= 0.19 - 1e-6
    assert found[20] == pytest.approx(4.0, abs=0.2)


def test_a_watch_begins_at_once_and_ends_with_the_next_second() -> None:
    found = instants(1.0, 0.2, 0.2, 0.2, 1.0, 1.0, asked=(0.5,))
    assert found == pytest.approx([0, 0.5, 0.7, 0.9, 1.1, 2.1, 3.1])


def full(offsets: list[float], monkeypatch: pytest.MonkeyPatch, every: float = 1.0) -> list[int]:
    """Which samples are full, where the wall's clock is so far off at each."""
    clock = Clock()
    wall = [0.0]
    monkeypatch.setattr(time, "time", lambda: clock.now + wall[0])
    pace = Pace(Ear(clock), Rest(clock), clock)
    found = []
    for number, offset in enumerate(offsets):
        wall[0] = offset
        if pace.is_full_due():
            found.append(number)
        pace.wait(every)
    return found


def test_each_tenth_second_everything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert full([0.0] * 31, monkeypatch) == [0, 10, 20, 30]
    assert full([0.0] * 101, monkeypatch, every=0.2) == [0, 50, 100]


def test_a_clock_that_jumped_or_a_machine_that_slept_makes_the_old_values_too_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert full([0.0] * 3 + [3600.0] * 12, monkeypatch) == [0, 3, 13]
    assert full([0.0] * 3 + [-3600.0] * 3, monkeypatch) == [0, 3]
    assert full([number / 100 for number in range(15)], monkeypatch) == [0, 10]  # a clock that is slewed
