"""How a reader asks for a sample now: a byte in a FIFO that the sampler waits at."""

from __future__ import annotations

import contextlib
import os
import select
import stat

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


class Stop:
    """The end of the work. A signal may set it at any moment, so there is no lock in it."""

    def __init__(self) -> None:
        self._is_set = False
        self._ends = os.pipe()
        os.set_blocking(self._ends[1], False)

    def set(self) -> None:
        """From any thread or signal, as often as one likes."""
        self._is_set = True
        with contextlib.suppress(OSError):
            os.write(self._ends[1], b".")

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """For `seconds` at most; whether it is set."""
        _wait((self.fileno(),), seconds)
        return self._is_set

    def fileno(self) -> int:
        """Readable once it is set."""
        return self._ends[0]

    def __del__(self) -> None:
        for descriptor in self._ends:
            os.close(descriptor)


class Wake:
    """The sampler's end of the FIFO. Without one (some file systems have none) it still waits its time."""

    def __init__(self, path: str, stop: Stop, mode: int = 0o600) -> None:
        self._stop = stop
        try:
            self._fifo = _open(path, mode)
        except (OSError, AttributeError):
            self._fifo = -1

    def wait(self, seconds: float) -> bool:
        """Until somebody asks or it is to stop, for `seconds` at most; whether somebody asked."""
        ready = _wait((self._stop.fileno(), self._fifo), seconds)
        if self._fifo not in ready:
            return False
        with contextlib.suppress(OSError):
            os.read(self._fifo, _MUCH)  # all who asked meanwhile are answered by one sample
        return True

    def close(self) -> None:
        if self._fifo >= 0:
            os.close(self._fifo)
        self._fifo = -1


def _wait(descriptors: tuple[int, ...], seconds: float) -> set[int]:
    """Those that can be read; none after `seconds`."""
    poll = select.poll()
    for descriptor in descriptors:
        if descriptor >= 0:
            poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)}


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
