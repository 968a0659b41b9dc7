"""Averages and integrals of a device's samples between two instants; a gap is left out, never bridged.

A sample stands for the time since the one before it: so does NVML's utilization, and a cell's last part
is told by the sample just after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from gpulab.telemetry.storing.rollups import PERIODS
from gpulab.telemetry.storing.rows import Sample

__all__ = ["Span"]

_SLOWEST_PERIOD = 1.0

Read = Callable[[Sample], float | None]


class Span:
    """The samples of one device around the time from `start` to `end` (seconds since the epoch)."""

    def __init__(
        self, samples: Sequence[Sample], start: float, end: float, period: float = _SLOWEST_PERIOD
    ) -> None:
        """`period`: seconds from one sample to the next where none is missing."""
        self.start, self.end = start, end
        self.period, self.gap = period, PERIODS * period
        self._around = sorted(samples)
        self.samples = tuple(s for s in self._around if start <= s.time <= end)

    @property
    def closing(self) -> float:
        """When the first sample after the end was taken, which tells of the last moments; else the end."""
        return min((s.time for s in self._around if s.time >= self.end), default=self.end)

    def parts(self) -> Iterator[tuple[float, Sample]]:
        """Seconds of the span, each with the sample that stands for them."""
        before = self.start
        for sample in self._around:
            if sample.time < self.start:
                continue
            begun = max(before, sample.time - self.gap)
            seconds = min(sample.time, self.end) - begun
            if seconds > 0:
                yield seconds, sample
            before = sample.time
            if before >= self.end:
                return

    def mean(self, read: Read) -> float | None:
        """The average over the time for which the value is known."""
        known = [(seconds, value) for seconds, s in self.parts() if (value := read(s)) is not None]
        total = sum(seconds for seconds, _ in known)
        return sum(seconds * value for seconds, value in known) / total if total else None

    def highest(self, read: Read) -> float | None:
        return max((value for _, s in self.parts() if (value := read(s)) is not None), default=None)

    def share(self, holds: Callable[[Sample], bool | None]) -> float | None:
        """The part of the known time, from 0 to 1, for which something holds."""
        return self.mean(lambda s: None if (held := holds(s)) is None else float(held))

    def counted(self, read: Read, fastest: float) -> float | None:
        """By how much a counter grew from start to end; None if it is not known near both.

        None also if it began anew meanwhile, or grew by more than `fastest` a second, which no device can.
        """
        known = [(s.time, value) for s in self._around if (value := read(s)) is not None]
        steps = [
            (b[0] - a[0], b[1] - a[1])
            for a, b in itertools.pairwise(known)
            if a[0] <= self.end and b[0] >= self.start  # what was before or comes after is no matter
        ]
        if not all(0 <= grown <= fastest * seconds for seconds, grown in steps):
            return None
        first, last = _at(known, self.start), _at(known, self.end)
        return None if first is None or last is None or last < first else last - first

    def integrated(self, read: Read) -> float | None:
        """The integral over all of the span; None if a gap, or an unknown value, leaves part of it open."""
        known = [(seconds, value) for seconds, s in self.parts() if (value := read(s)) is not None]
        covered = sum(seconds for seconds, _ in known)
        missing = self.end - self.start - covered
        tail = max(0.0, self.end - max((s.time for s in self._around if read(s) is not None), default=0.0))
        if not known or tail > self.gap or missing - tail > self.period:
            return None
        return sum(seconds * value for seconds, value in known) + missing * known[-1][1]


def _at(points: Sequence[tuple[float, float]], time: float) -> float | None:
    """A counter's value between two readings of it, or by its pace just outside of them."""
    before = [point for point in points if point[0] <= time]
    after = [point for point in points if point[0] > time]
    if before and after:
        pair = before[-1], after[0]
    elif len(points) > 1:
        pair = (points[0], points[1]) if after else (points[-2], points[-1])
    else:
        return None
    (t0, v0), (t1, v1) = pair
    nearest = min(abs(time - t0), abs(time - t1))
    if t1 - t0 > PERIODS * _SLOWEST_PERIOD or (not (before and after) and nearest > _SLOWEST_PERIOD):
        return None
    return v0 + (v1 - v0) * (time - t0) / (t1 - t0)
