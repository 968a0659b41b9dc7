"""Whether the wall clock can be believed when it says that something is old."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["STEADY_SECONDS", "Steadiness", "elapsed"]

STEADY_SECONDS = 600.0
"""So long must a clock go on without a jump before what it calls old is dropped."""
_JUMP_SECONDS = 2.0
_PLAUSIBLE_SECONDS = 3600.0


def elapsed() -> float:
    """Seconds that never jump, and that go on while the machine sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Steadiness:
    """Compares the wall clock with one that never jumps."""

    def __init__(self, clock: Callable[[], float] = elapsed) -> None:
        self.clock = clock
        self._offset: float | None = None
        self._since = 0.0

    def look(self, wall: float) -> bool:
        """Take note of the time on the wall; False if it has jumped since the last look."""
        now = self.clock()
        offset = wall - now
        jumped = self._offset is not None and abs(offset - self._offset) > _JUMP_SECONDS
        if self._offset is None or jumped:
            self._since = now
        self._offset = offset
        return not jumped

    def believes(self, wall: float, trusted: float | None) -> bool:
        """Whether `wall` follows the last time that was believed, or the clock has long been steady."""
        if trusted is not None and 0 <= wall - trusted <= _PLAUSIBLE_SECONDS:
            return True
        return self.clock() - self._since >= STEADY_SECONDS
