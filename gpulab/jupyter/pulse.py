"""Whether a sampler's record has changed, by stat calls alone: nothing is parsed to know that it lives."""

from __future__ import annotations

import os
from collections.abc import Iterable

__all__ = ["Pulse"]

_Stamp = tuple[int, int] | None


class Pulse:
    """Remembers what some files looked like."""

    def __init__(self) -> None:
        self._stamps: tuple[_Stamp, ...] | None = None

    def changed(self, paths: Iterable[str]) -> bool:
        """True if one of them is there and not as it was at the last call. Never raises."""
        stamps = tuple(_stamp(path) for path in paths)
        before, self._stamps = self._stamps, stamps
        return stamps != before and any(stamps)


def _stamp(path: str) -> _Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
