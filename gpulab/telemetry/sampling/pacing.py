"""When to sample: drift-free by a clock that never jumps, sooner when somebody asks."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpulab.telemetry.sampling.wake import Stop, Wake

__all__ = ["CLOSE_SECONDS", "PERIOD_SECONDS", "Pace"]

PERIOD_SECONDS = 1.0
CLOSE_SECONDS = 0.2
"""The period while somebody watches, and the least time between two samples."""
_JITTER_SECONDS = 0.01
"""So much sooner may a sample follow one that was late, for its own instant to be kept."""
_FULL_SECONDS = 10.0
_JUMP_SECONDS = 2.0


class Pace:
    """The instants of samples. Those missed are not made up."""

    def __init__(self, wake: Wake, stop: Stop, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds that never jump."""
        self._wake = wake
        self._stop = stop
        self._clock = clock
        self._due = self._last = clock()
        self._full_due = self._due
        self._offset = time.time() - self._due

    def wait(self, period: float) -> None:
        """Until the next sample: `period` after the last one's instant, sooner if somebody asks."""
        self._due += period if self._due <= self._last else 0.0
        self._due = min(self._due, self._last + period)
        while not self._stop.is_set():
            now = self._clock()
            if now >= self._due:
                break
            if self._wake.wait(self._due - now):
                # From here on without an ear: who asks all the time gets no more than that
                self._stop.wait(max(0.0, self._last + CLOSE_SECONDS - self._clock()))
                break
        now = self._clock()
        self._stop.wait(max(0.0, self._last + CLOSE_SECONDS - _JITTER_SECONDS - now))
        self._last = max(now, self._clock())
        if self._last - self._due >= period:
            self._due += (self._last - self._due) // period * period

    def is_full_due(self) -> bool:
        """Whether this sample is one for everything: each 10 s, and after a sleep or a jump of the clock."""
        now = self._clock()
        offset = time.time() - now
        jumped, self._offset = abs(offset - self._offset) > _JUMP_SECONDS, offset
        if not jumped and now < self._full_due - CLOSE_SECONDS / 2:
            return False
        self._full_due = now + _FULL_SECONDS
        return True
