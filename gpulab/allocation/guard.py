"""The guard of a lease directory: one lock, held for milliseconds, that makes check-and-take atomic."""

import contextlib
import os
import random
import sys
import time
from collections.abc import Iterator

from gpulab.allocation.directory import LeaseDirectory
from gpulab.errors import LeaseDirectoryError

if sys.platform != "win32":
    import fcntl

__all__ = ["GUARD_TIMEOUT", "guard"]

GUARD_TIMEOUT = 5.0


@contextlib.contextmanager
def guard(directory: LeaseDirectory, timeout: float = GUARD_TIMEOUT) -> Iterator[None]:
    """Hold the directory's guard. Raises LeaseDirectoryError if somebody keeps it for `timeout` seconds."""
    fd = directory.open_guard()
    try:
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LeaseDirectoryError(_guard_is_held(fd, directory, timeout)) from None
                time.sleep(random.uniform(0.0005, 0.004))
        yield
    finally:
        os.close(fd)


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
