"""What the pump knows: the newest snapshot and its true age, the leases, who waits.

And it sees to it that a sampler runs while somebody looks.
"""

from __future__ import annotations

import logging
import math
import time

from gpulab import config
from gpulab.allocation import leases as lease_files
from gpulab.allocation.records import LeaseRecord
from gpulab.allocation.tickets import waiting_now
from gpulab.errors import GpulabError
from gpulab.hardware import record
from gpulab.hardware.devices import Snapshot
from gpulab.jupyter.pulse import Pulse
from gpulab.telemetry import sampler

__all__ = ["Feed"]

_LATE_SECONDS = 1.2
"""A sample is due each second: a record older than this may have lost its sampler."""
_PLAUSIBLE_SECONDS = 5.0
_FUTURE_SECONDS = 1.5
_WATCHED_SECONDS = 2.0
_SHORTEST_PAUSE = 0.5
_LONGEST_PAUSE = 15.0
_LOG = logging.getLogger(__name__)


class Feed:
    """Reads files only. Nothing raises but the constructor: ConfigError if the settings cannot be read."""

    def __init__(self) -> None:
        self.settings = config.load()
        self.snapshot: Snapshot | None = None
        self.leases: tuple[LeaseRecord, ...] = ()
        self.waiting: tuple[LeaseRecord, ...] = ()
        self.sampling = True
        """Whether a sampler can run at all."""
        self._pulse = Pulse()
        self._looked_at = self._read_at = -math.inf
        self._age_when_read = 0.0
        self._pause = _SHORTEST_PAUSE
        self._ensure_at = -math.inf

    @property
    def age(self) -> float:
        """Seconds since the newest snapshot, by a clock that does not jump; infinite before the first."""
        if self.snapshot is None:
            return math.inf
        return self._age_when_read + time.monotonic() - self._read_at

    @property
    def is_late(self) -> bool:
        """Whether a newer snapshot should be there by now."""
        return self.age > _LATE_SECONDS

    def upkeep(self, *, waiters: bool) -> None:
        """What need not be done each second: tell the sampler, look at claims, read the environment anew."""
        try:
            self.settings = config.load()
        except GpulabError:
            _LOG.debug("Settings have become unreadable; the old ones stay", exc_info=True)
        sampler.touch(self.settings)
        self.leases = lease_files.live_leases(self.settings)
        self.waiting = waiting_now(self.settings) if waiters else ()

    def read(self) -> bool:
        """Take the newest snapshot, if there is a newer one; True if so."""
        now = time.monotonic()
        watched, self._looked_at = now - self._looked_at, now
        if not self._pulse.changed(record.paths(self.settings)):
            return False
        snapshot = record.latest(self.settings)
        if snapshot is None or (self.snapshot is not None and snapshot.time == self.snapshot.time):
            return False
        age = _age(snapshot, watched)
        if age is None:
            return False
        self.snapshot, self._age_when_read, self._read_at = snapshot, age, now
        self._pause, self._ensure_at = _SHORTEST_PAUSE, -math.inf
        return True

    def revive(self) -> bool:
        """See to a sampler where the record is late, ever more seldom if in vain; True if tried."""
        now = time.monotonic()
        if not self.is_late or now < self._ensure_at:
            return False
        self._ensure_at = now + self._pause
        if (
            sampler.running_pid(self.settings) is None
        ):  # else it hangs in the driver, and will go on by itself
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._ensure_at = now + self._pause
            self.sampling = sampler.ensure(self.settings)
        return True


def _age(snapshot: Snapshot, watched: float) -> float | None:
    """How old a snapshot is whose file has changed in the last `watched` seconds; None if nobody can tell.

    The clock on the wall may have been set since: then a change that was seen says more.
    """
    age = time.time() - snapshot.time
    if -_FUTURE_SECONDS < age < _PLAUSIBLE_SECONDS:
        return max(0.0, age)
    if watched < _WATCHED_SECONDS:
        return watched
    return age if age > 0 else None
