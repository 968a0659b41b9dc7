"""The loop that every sampler runs: look, publish, keep; once a second, or closer while somebody watches."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import NamedTuple

from gpulab.config import Settings
from gpulab.hardware import record
from gpulab.hardware.devices import Snapshot
from gpulab.telemetry.sampling.lease_reading import LeaseReading
from gpulab.telemetry.sampling.pacing import CLOSE_SECONDS, PERIOD_SECONDS, Pace
from gpulab.telemetry.sampling.wake import Stop, Wake
from gpulab.telemetry.sampling.watches import Watches

__all__ = ["Place", "Sampling"]

_TIMEOUT_SECONDS = 0.8
_LOG = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where a sampler publishes, and where it is asked."""

    record: str
    wake: str
    wake_mode: int
    watches: str
    watches_mode: int
    history: str | None = None
    """The file of a history that others read too; None means this account's own."""
    host: bool = False


class Sampling:
    """A sampler at work. `stop.set()` ends it, also from a signal."""

    def __init__(self, settings: Settings, place: Place) -> None:
        from gpulab.telemetry.store import Store

        self.settings = settings
        self.stop = Stop()
        self.leases = LeaseReading(settings)
        self._place = place
        self._store = Store(settings, path=place.history)
        self._newest: Snapshot | None = None
        self._said = ""

    def newest(self) -> Snapshot | None:
        """The snapshot that was published last; from any thread."""
        return self._newest

    def run(self) -> None:
        """Sample until stopped, or no longer needed. No state of the hardware raises."""
        from gpulab.hardware import nvml

        _remove_rests(self._place.record)
        wake = Wake(self._place.wake, self.stop, self._place.wake_mode)
        watches = Watches(self._place.watches, self._place.watches_mode)
        pace = Pace(wake, self.stop)
        try:
            watched = watches.look()
            while not self.stop.is_set() and self._goes_on(watched=watched.active):
                self._sample(full=pace.is_full_due(), links=watched.links)
                pace.wait(CLOSE_SECONDS if watched.active else PERIOD_SECONDS)
                watched = watches.look()
        finally:
            wake.close()
            self._store.close()
            nvml.shutdown()

    def _goes_on(self, *, watched: bool) -> bool:  # noqa: ARG002 - for those who depend on it
        """Whether somebody needs the next sample."""
        return True

    def _sample(self, *, full: bool, links: bool) -> None:
        from gpulab.hardware import nvml

        detail = "full" if full else "fast"
        snapshot = nvml.snapshot(detail=detail, links=links, timeout=_TIMEOUT_SECONDS, settings=self.settings)
        self._publish(snapshot)
        leases = self.leases.news()
        if snapshot.devices or self.leases.known:
            self._store.append(snapshot, leases, close=links)

    def _publish(self, snapshot: Snapshot) -> None:
        self._newest = snapshot
        place = self._place
        try:
            record.publish(snapshot, self.settings, host=place.host, history=place.history)
            self._said = ""
        except OSError as error:
            message = f"The record cannot be written: {error}"
            if message != self._said:
                _LOG.warning(message)
                self._said = message


def _remove_rests(path: str) -> None:
    """What samplers left behind that were killed while they wrote."""
    directory, name = os.path.split(path)
    with contextlib.suppress(OSError):
        for other in os.listdir(directory):
            if other.startswith(f"{name}."):
                os.unlink(os.path.join(directory, other))
