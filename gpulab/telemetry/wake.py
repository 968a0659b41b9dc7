"""How a reader asks for a sample now: a byte in a FIFO that the sampler waits at."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import threading
import time

from gpulab.config import Settings
from gpulab.hardware import hosting

__all__ = ["Stop", "Wake", "look", "wake_path"]

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_MUCH = 2**16


def wake_path(settings: Settings) -> str:
    """The FIFO of this account's sampler."""
    return os.path.join(settings.machine_dir, "wake")


def look(settings: Settings) -> None:
    """Ask the sampler for a sample now. Never waits, never raises; no sampler is no matter.

    It samples at once, and at most five times a second whoever asks.
    """
    host = hosting.trusted(settings)
    if host is None or not _write(os.path.join(host, "wake")):
        _write(wake_path(settings))


class Wake:
    """The sampler's end of the FIFO. Without one (some file systems have none) it still waits its time."""

    def __init__(self, path: str, mode: int = 0o600) -> None:
        try:
            self._read = self._write = _open(path, mode)
        except (OSError, AttributeError):
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)

    def wait(self, seconds: float) -> bool:
        """Until somebody asks, for `seconds` at most; whether somebody asked."""
        deadline = time.monotonic() + seconds
        while not select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if time.monotonic() >= deadline:
                return False
        with contextlib.suppress(OSError):
            os.read(self._read, _MUCH)  # all who asked meanwhile are answered by one sample
        return True

    def prod(self) -> None:
        """End the wait from another thread, or from a signal."""
        with contextlib.suppress(OSError):
            os.write(self._write, b".")

    def close(self) -> None:
        for descriptor in {self._read, self._write}:
            os.close(descriptor)
        self._read = self._write = -1


class Stop(threading.Event):
    """The end of the work, which also ends a wait at `wake`."""

    wake: Wake | None = None

    def set(self) -> None:
        super().set()
        if self.wake is not None:
            self.wake.prod()


def _open(path: str, mode: int) -> int:
    """Open our FIFO, made anew unless what lies there is one of ours. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        status = os.lstat(path)
        if not stat.S_ISFIFO(status.st_mode) or status.st_uid != os.getuid():
            os.unlink(path)
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, mode)
    # For writing too: else each writer who leaves would look like the end of the file
    descriptor = os.open(path, os.O_RDWR | _FLAGS)
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileExistsError(path)
    os.fchmod(descriptor, mode)
    return descriptor


def _write(path: str) -> bool:
    """Whether somebody reads there."""
    try:
        descriptor = os.open(path, os.O_WRONLY | _FLAGS)
    except OSError:
        return False
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.write(descriptor, b".")
    except OSError:  # it is full: then the sampler has been asked
        return True
    finally:
        os.close(descriptor)
    return True
