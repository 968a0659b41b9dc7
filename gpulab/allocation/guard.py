"""The guard of a lease directory: one lock, held for milliseconds, that makes check-and-take atomic."""

import contextlib
import os
import random
import sys
import time

from gpulab.allocation.directory import LeaseDirectory
from gpulab.errors import LeaseDirectoryError

if sys.platform != "win32":
    import fcntl

__all__ = ["GUARD_TIMEOUT", "guard"]

GUARD_TIMEOUT = 5.0


class guard:  # noqa: N801 - it reads as what one does: with guard(directory)
    """Hold the directory's guard. Raises LeaseDirectoryError if somebody keeps it for `timeout` seconds.

    Not a generator: interrupted at the wrong instant one lives on in the traceback, and holds the guard.
    """

    def __init__(self, directory: LeaseDirectory, timeout: float = GUARD_TIMEOUT) -> None:
        self._directory = directory
        self._timeout = timeout
        self._fd = -1

    def __enter__(self) -> None:
        self._fd = self._directory.open_guard()
        try:
            self._lock()
        except BaseException:
            os.close(self._fd)
            raise

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)

    def _lock(self) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = _guard_is_held(self._fd, self._directory, self._timeout)
                    raise LeaseDirectoryError(message) from None
                time.sleep(random.uniform(0.0005, 0.004))
            else:
                return


def _guard_is_held(fd: int, directory: LeaseDirectory, timeout: float) -> str:
    """Name the process that keeps the guard, which /proc/locks knows."""
    holder = ""
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as locks:
        inode = f":{os.fstat(fd).st_ino}"
        for fields in (line.split() for line in locks):
            if "FLOCK" in fields and "->" not in fields and fields[-3].endswith(inode):
                holder = f" by process {fields[-4]}"
    return (
        f"The guard of {directory.path} has been held{holder} for {timeout:.0f} s; "
        "end that process, or try again."
    )
