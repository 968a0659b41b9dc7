"""Who samples: the process that holds a lock, which ends with it however it ended."""

from __future__ import annotations

import contextlib
import os

from gpulab.config import Settings

__all__ = ["holder", "is_in_office", "lock_path", "log_path", "note_pid", "running_pid", "take_lock"]

_PID_DIGITS = 20
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


def lock_path(settings: Settings) -> str:
    """Locked while a sampler runs."""
    return os.path.join(settings.machine_dir, "sampler.lock")


def log_path(settings: Settings) -> str:
    """What the last sampler had to say; empty in good times."""
    return os.path.join(settings.machine_dir, "sampler.log")


def running_pid(settings: Settings) -> int | None:
    """The sampler's process, or None if none runs (or none that this account may see). Never raises."""
    return holder(lock_path(settings))


def holder(path: str) -> int | None:
    """The process that holds the lock in a file; None if none does, or it cannot be told. Never raises."""
    try:
        import fcntl

        with open(path, encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = file.read(_PID_DIGITS).strip()
                return int(pid) if pid.isdecimal() else None
    except (OSError, ValueError, ImportError):  # no fcntl: not a system for it
        return None
    return None


def take_lock(path: str) -> int | None:
    """An open descriptor that holds the lock, or None if somebody else does. Raises OSError, ImportError."""
    import fcntl

    try:
        descriptor = os.open(path, _FLAGS, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = os.open(path, _FLAGS, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


def note_pid(lock: int) -> None:
    """Say in the lock's file that this process holds it."""
    with contextlib.suppress(OSError):  # a full disk: then nobody is told, and the lock holds all the same
        os.pwrite(lock, str(os.getpid()).ljust(_PID_DIGITS).encode("ascii"), 0)


def is_in_office(lock: int, path: str) -> bool:
    """False once the lock's file is gone or another one: then nobody can find who holds it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(lock))
    except OSError:
        return False
