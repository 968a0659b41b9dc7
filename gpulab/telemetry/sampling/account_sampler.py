"""The sampler of one account: it runs while somebody reads or watches, or the account holds a lease."""

from __future__ import annotations

import os
import time

from gpulab.config import Settings
from gpulab.hardware import hosting, record
from gpulab.telemetry.sampling.election import is_in_office, lock_path, note_pid
from gpulab.telemetry.sampling.loop import Place, Sampling
from gpulab.telemetry.sampling.starting import readers_path
from gpulab.telemetry.sampling.wake import wake_path
from gpulab.telemetry.sampling.watches import watches_path

__all__ = ["IDLE_SECONDS", "Sampler"]

IDLE_SECONDS = 30.0


class Sampler(Sampling):
    """This account's: it samples while somebody reads or watches, or the account holds a lease."""

    def __init__(self, settings: Settings, lock: int, *, idle_seconds: float = IDLE_SECONDS) -> None:
        place = Place(record.record_path(settings), wake_path(settings), 0o600, watches_path(settings), 0o700)
        super().__init__(settings, place)
        self.lock = lock
        self.idle_seconds = idle_seconds
        self._here: frozenset[str] = frozenset()
        self._read_stamp: int | None = None
        self._wanted_at = time.monotonic()

    def run(self) -> None:
        """Sample until stopped, unwanted, replaced by the host's, or no longer in office."""
        note_pid(self.lock)
        super().run()

    def _goes_on(self, *, watched: bool) -> bool:
        if not is_in_office(self.lock, lock_path(self.settings)) or hosting.serving(self.settings):
            return False
        now = time.monotonic()
        if self._is_read() or watched or self._holds_lease():
            self._wanted_at = now
        return now - self._wanted_at < self.idle_seconds

    def _is_read(self) -> bool:
        """By changes of the readers' file alone: the clock on the wall may jump."""
        before = self._read_stamp
        try:
            self._read_stamp = os.stat(readers_path(self.settings)).st_mtime_ns
        except OSError:
            self._read_stamp = None
        return self._read_stamp != before

    def _holds_lease(self) -> bool:
        newest = self.newest()
        if newest is not None and newest.devices:  # else as it was: a driver that fails ends no lease
            self._here = frozenset(device.uuid for device in newest.devices if device.uuid)
        own = os.getuid()
        # Also those of other simulated machines are told: not this one's business
        return any(
            lease.uid == own and not self._here.isdisjoint(lease.gpus) for lease in self.leases.known or ()
        )
