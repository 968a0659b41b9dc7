"""Who holds what, read beside the sampler's work: however many files there are, no sample waits for it."""

from __future__ import annotations

import math
import os
import time

from gpulab.allocation.directory import find
from gpulab.allocation.leases import live
from gpulab.allocation.records import LeaseRecord
from gpulab.config import Settings
from gpulab.errors import GpulabError
from gpulab.hardware.guarded import Guarded
from gpulab.hardware.hosting import lease_root

__all__ = ["LeaseReading"]

_EVERY_SECONDS = 5.0
_SOONEST_SECONDS = 0.2
_PATIENCE_SECONDS = 0.02
"""Some leases are read in a few milliseconds: then they are this sample's, not the next one's."""
_SHARE_OF_TIME = 50.0
"""What takes t seconds is done again after 50 t at the earliest."""


class LeaseReading:
    """The leases, read each 5 s and whenever the lease directory has changed, in a thread of its own."""

    def __init__(self, settings: Settings, *, public: bool = False) -> None:
        """`public`: for everybody, who may not know this account's own notebooks either."""
        self.settings = settings
        self._hides_notebooks = public and settings.names != "full"
        self.known: tuple[LeaseRecord, ...] | None = None
        """Those read last; None while nothing is known."""
        self._reading: Guarded | None = None
        self._began = -math.inf
        self._cost = 0.0
        self._stamp: int | None = None

    def news(self) -> tuple[LeaseRecord, ...] | None:
        """The leases, if they were read since the last call; else None."""
        now = time.monotonic()
        if self._reading is None and self._is_due(now):
            self._began = now
            self._reading = Guarded(self._read)
            self._reading.wait(now + _PATIENCE_SECONDS)
        if self._reading is None or not self._reading.is_done():
            return None
        found: tuple[LeaseRecord, ...] | None = self._reading.value
        self._reading = None
        if found is not None:
            self.known = found
        return found

    def _is_due(self, now: float) -> bool:
        stamp, since = self._directory_stamp(), now - self._began
        changed = stamp != self._stamp
        if since < max(_SOONEST_SECONDS if changed else _EVERY_SECONDS, self._cost * _SHARE_OF_TIME):
            return False
        self._stamp = stamp
        return True

    def _read(self) -> tuple[LeaseRecord, ...] | None:
        begun = time.thread_time()
        try:
            found = live(find(self.settings), self.settings.names)
            return tuple(lease._replace(notebook=None) for lease in found) if self._hides_notebooks else found
        except (GpulabError, OSError):
            return None  # unknown, which is not the same as none
        finally:
            self._cost = time.thread_time() - begun

    def _directory_stamp(self) -> int | None:
        try:
            return os.stat(lease_root(self.settings)).st_mtime_ns
        except OSError:
            return None
