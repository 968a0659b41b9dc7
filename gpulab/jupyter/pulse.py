"""Whether the sampler's record has changed, by stat calls alone: nothing is parsed to know that it lives."""

from __future__ import annotations

import os

from gpulab.config import Settings
from gpulab.hardware import record

__all__ = ["Pulse"]

_Stamp = tuple[int, int] | None


class Pulse:
    """Remembers what the record's file looked like."""

    def __init__(self) -> None:
        self._stamps: tuple[_Stamp, ...] | None = None

    def changed(self, settings: Settings) -> bool:
        """True if there is a record that is another than at the last call. Never raises."""
        stamps = tuple(_stamp(path) for path in _paths(settings))
        before, self._stamps = self._stamps, stamps
        return stamps != before and any(stamps)


def _paths(settings: Settings) -> tuple[str, ...]:
    return (record.record_path(settings),)


def _stamp(path: str) -> _Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
