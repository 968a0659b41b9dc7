"""The one process of an account that samples this machine's GPUs, once a second, for all its readers.

`ensure()` starts it, a lock elects it, and it ends by itself when nobody reads and no lease is held, or
when a sampler of the whole host serves. `python -m gpulab.telemetry.sampler` is that process.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Sequence

from gpulab import config
from gpulab.config import Settings
from gpulab.errors import GpulabError
from gpulab.hardware import hosting, record
from gpulab.telemetry.election import is_in_office, lock_path, log_path, note_pid, running_pid, take_lock
from gpulab.telemetry.host_sampler import AlreadyServingError, HostSampler
from gpulab.telemetry.sampling import Place, Sampling
from gpulab.telemetry.starting import ensure, readers_path, touch
from gpulab.telemetry.wake import look, wake_path
from gpulab.telemetry.watches import Watch, watch, watches_path

__all__ = [
    "AlreadyServingError",
    "HostSampler",
    "Sampler",
    "Watch",
    "ensure",
    "lock_path",
    "log_path",
    "look",
    "main",
    "readers_path",
    "running_pid",
    "touch",
    "watch",
]

_IDLE_SECONDS = 30.0
_LOG = logging.getLogger(__name__)


class Sampler(Sampling):
    """This account's: it samples while somebody reads or watches, or the account holds a lease."""

    def __init__(self, settings: Settings, lock: int, *, idle_seconds: float = _IDLE_SECONDS) -> None:
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Be the sampler, or leave at once if there is one."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m gpulab.telemetry.sampler", description=main.__doc__)
    parser.add_argument("--lock-fd", type=int, help="the lock, taken by the process that started this one")
    parser.add_argument(
        "--idle-seconds", type=float, default=_IDLE_SECONDS, help="end after so long without readers"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    try:
        settings = config.load()
        lock = options.lock_fd if options.lock_fd is not None else take_lock(lock_path(settings))
        if lock is not None:
            _serve(settings, lock, options.idle_seconds)
    except (GpulabError, OSError, ImportError) as error:
        _LOG.warning("The sampler ends: %s", error)
        return 1
    return 0


def _serve(settings: Settings, lock: int, idle_seconds: float) -> None:
    os.set_inheritable(lock, False)
    sampler = Sampler(settings, lock, idle_seconds=idle_seconds)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sampler.stop.set())
    sampler.run()


if __name__ == "__main__":
    sys.exit(main())
