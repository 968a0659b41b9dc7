"""The one process of an account that samples this machine's GPUs, once a second, for all its readers.

`ensure()` starts it, a lock elects it, and it ends by itself when nobody reads and no lease is held.
`python -m gpulab.telemetry.sampler` is that process.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpulab import config
from gpulab.config import Settings
from gpulab.errors import GpulabError
from gpulab.hardware import record

if TYPE_CHECKING:
    import subprocess

__all__ = [
    "Sampler",
    "ensure",
    "lock_path",
    "log_path",
    "main",
    "readers_path",
    "running_pid",
    "touch",
]

_IDLE_SECONDS = 30.0
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
_PERIOD_SECONDS = 1.0
_LEASES_EVERY = 5.0
_LOG = logging.getLogger(__name__)

_started: list[subprocess.Popen[bytes]] = []


def lock_path(settings: Settings) -> str:
    """Locked while a sampler runs."""
    return os.path.join(settings.machine_dir, "sampler.lock")


def log_path(settings: Settings) -> str:
    """What the last sampler had to say; empty in good times."""
    return os.path.join(settings.machine_dir, "sampler.log")


def readers_path(settings: Settings) -> str:
    """A file whose time of change says when somebody last read."""
    return os.path.join(settings.machine_dir, "readers")


def touch(settings: Settings) -> None:
    """Tell the sampler that somebody reads. Cheap, and never raises."""
    path = readers_path(settings)
    try:
        os.utime(path)
    except OSError:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError:
            return  # no directory, or not ours to write: then there is no sampler to tell either


def ensure(settings: Settings) -> bool:
    """See to it that this account's sampler runs; False if it cannot.

    Never raises. Where one runs it costs two system calls.
    """
    _started[:] = [child for child in _started if child.poll() is None]  # those that ended are let go
    try:
        lock = _take_lock(settings)
        if lock is None:
            return True  # it runs, or another process is starting it
        try:
            touch(settings)
            _start(settings, lock)
        finally:
            os.close(lock)  # the sampler has its own hold on the same lock
    except (OSError, ImportError) as error:  # no fcntl: not a system for it
        _LOG.info("The sampler cannot be started: %s", error)
        return False
    return True


def running_pid(settings: Settings) -> int | None:
    """The sampler's process, or None if none runs (or none that this account may see). Never raises."""
    import fcntl

    try:
        with open(lock_path(settings), encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = file.read().strip()
                return int(pid) if pid.isdecimal() else None
    except OSError:
        return None
    return None


def _take_lock(settings: Settings) -> int | None:
    """An open descriptor that holds the lock, or None if somebody else does."""
    import fcntl

    try:
        descriptor = os.open(lock_path(settings), _OPEN_LOCK, 0o600)
    except FileNotFoundError:
        os.makedirs(settings.machine_dir, mode=0o700, exist_ok=True)
        descriptor = os.open(lock_path(settings), _OPEN_LOCK, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


def _start(settings: Settings, lock: int) -> None:
    """The lock is handed down, so of many processes that call `ensure` at once one starts one sampler."""
    import subprocess

    with open(log_path(settings), "wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "gpulab.telemetry.sampler", "--lock-fd", str(lock)],
            cwd="/",
            env=_environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            close_fds=True,
            pass_fds=(lock,),
            start_new_session=True,
        )
    _started.append(child)


def _environment(settings: Settings) -> dict[str, str]:
    """That of this process, `settings` spelled out, less the lease: it is not the sampler's to hold."""
    environ = {
        name: value for name, value in config.inherited().items() if not name.startswith("GPULAB_LEASE")
    }
    for name, value in (
        ("GPULAB_DATA_DIR", settings.data_dir),
        ("GPULAB_SIMULATE", settings.simulate),
        ("GPULAB_LEASE_DIR", settings.lease_dir),
    ):
        environ.pop(name, None)
        if value is not None:
            environ[name] = value
    return environ


class Sampler:
    """The loop: a snapshot each period, published and stored, until nobody needs it any more."""

    def __init__(self, settings: Settings, lock: int, *, idle_seconds: float = _IDLE_SECONDS) -> None:
        from gpulab.telemetry.store import Store

        self.settings = settings
        self.lock = lock
        self.idle_seconds = idle_seconds
        self.store = Store(settings)
        self.stop = threading.Event()
        self._said = ""
        self._uuids: frozenset[str] = frozenset()
        self._read_stamp: int | None = None
        self._wanted_at = self._leases_at = time.monotonic()

    def run(self) -> None:
        """Sample until stopped, unwanted, or no longer the one that holds the lock."""
        from gpulab.hardware import nvml

        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, str(os.getpid()).encode("ascii"), 0)
        due = time.monotonic()
        try:
            while not self.stop.is_set() and self._is_in_office() and self._is_wanted():
                self._sample()
                # Each instant is reckoned from the one before, without drift; those missed are not made up
                due = max(due + _PERIOD_SECONDS, time.monotonic() - _PERIOD_SECONDS)
                self.stop.wait(max(0.0, due - time.monotonic()))
        finally:
            self.store.close()
            nvml.shutdown()

    def _sample(self) -> None:
        from gpulab.hardware import nvml

        snapshot = nvml.snapshot(detail="full", timeout=0.8 * _PERIOD_SECONDS, settings=self.settings)
        try:
            record.publish(snapshot, self.settings)
            self._said = ""
        except OSError as error:
            self._say(f"The record cannot be written: {error}")
        if snapshot.devices:
            self._uuids = frozenset(device.uuid for device in snapshot.devices if device.uuid)
            self.store.append(snapshot)

    def _is_in_office(self) -> bool:
        """False once the lock file is gone or another one: then nobody can find this sampler."""
        try:
            return os.path.samestat(os.stat(lock_path(self.settings)), os.fstat(self.lock))
        except OSError:
            return False

    def _is_wanted(self) -> bool:
        """By changes of the readers' file and the monotonic clock: the clock on the wall may jump."""
        now = time.monotonic()
        try:
            stamp = os.stat(readers_path(self.settings)).st_mtime_ns
        except OSError:
            stamp = None
        if stamp != self._read_stamp:
            self._read_stamp = stamp
            self._wanted_at = now
        elif now - self._leases_at >= min(_LEASES_EVERY, self.idle_seconds):
            self._leases_at = now
            if self._holds_lease():
                self._wanted_at = now
        return now - self._wanted_at < self.idle_seconds

    def _holds_lease(self) -> bool:
        from gpulab.allocation.leases import live_leases

        own = os.getuid()
        leases = live_leases(self.settings)  # also those of other simulated machines: not this one's business
        return any(lease.uid == own and not self._uuids.isdisjoint(lease.gpus) for lease in leases)

    def _say(self, message: str) -> None:
        if message != self._said:
            _LOG.warning(message)
            self._said = message


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
        lock = options.lock_fd if options.lock_fd is not None else _take_lock(settings)
        if lock is not None:
            _serve(settings, lock, options.idle_seconds)
    except (GpulabError, OSError) as error:
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
