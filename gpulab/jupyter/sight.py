"""How a kernel that waits looks at the GPUs: at once when a lease begins or ends, seldom otherwise."""

from __future__ import annotations

import time

from gpulab.allocation.leases import live_leases
from gpulab.config import Settings
from gpulab.hardware.devices import Snapshot
from gpulab.hardware.observe import observe

__all__ = ["Sight"]

_FRESH_SECONDS = 3.0
"""After a change each look is a new one: the driver may list the processes of an ended lease for a moment."""
_SHARE_OF_TIME = 150.0
"""A look that took t seconds is good for 150 t where nothing has changed: under 1 % of a core."""

_MOST_SECONDS = 30.0
"""But a driver that hung once is asked again soon."""


class Sight:
    """The last snapshot, for as long as it will do. Calling it raises nothing."""

    def __init__(self, settings: Settings, detail: str) -> None:
        self._settings = settings
        self._detail = detail
        self._leases: frozenset[str] | None = None
        self._changed = 0.0
        self._looked = 0.0
        self._cost = 0.0
        self._snapshot: Snapshot | None = None

    def __call__(self) -> Snapshot:
        now = time.monotonic()
        leases = frozenset(lease.id for lease in live_leases(self._settings))
        if leases != self._leases:
            self._leases, self._changed = leases, now
        fresh = now - self._changed < _FRESH_SECONDS
        rest = min(_MOST_SECONDS, _SHARE_OF_TIME * self._cost)
        if self._snapshot is None or fresh or now - self._looked >= rest:
            self._snapshot = observe(
                max_age=0 if fresh else 2.0, settings=self._settings, detail=self._detail
            )
            self._looked = time.monotonic()
            self._cost = self._looked - now
        return self._snapshot
