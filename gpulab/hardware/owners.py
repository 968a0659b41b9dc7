"""Who a process belongs to, from /proc: its user and its command's name, never its arguments."""

from __future__ import annotations

import functools
import os

__all__ = ["command_of", "identity_of", "lease_in_environment", "owner_of", "sees_host_processes", "uid_of"]

_HOST_NAMESPACE = 0xEFFFFFFC
"""The inode that Linux gives the first process namespace."""
_MAX_ENVIRONMENT = 2**18
_LEASE, _LEASE_DIGITS = b"GPULAB_LEASE=", 8


@functools.cache
def sees_host_processes() -> bool:
    """Whether a process id of NVML, which is the host's, means the same process here (not in a container)."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _HOST_NAMESPACE
    except OSError:
        return False


def owner_of(pid: int) -> str | None:
    """The user's name, or number if it has no name; None if we cannot see the process."""
    uid = uid_of(pid)
    return None if uid is None else _user(uid)


def uid_of(pid: int) -> int | None:
    """The user's number; None if we cannot see the process."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def identity_of(pid: int) -> tuple[int, int] | None:
    """What no other process with this id ever has; None if we cannot see the process.

    Linux gives each process's directory in /proc an inode of its own, so one stat call tells a process
    from a later one, where reading its start time takes eight times as long. It may make a new inode for
    the same process: then that counts as another, and is merely read again.
    """
    try:
        found = os.stat(f"/proc/{pid}")
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def command_of(pid: int) -> str | None:
    """The command's short name without control characters; None if we cannot see the process."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return "".join(c for c in file.read() if c.isprintable()) or None
    except OSError:
        return None


def lease_in_environment(pid: int) -> str | None:
    """The lease that a process was started under, live or not; None if it has none or is not ours to read.

    Linux shows a process's environment as it was at its start, to its own account and to root.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read(_MAX_ENVIRONMENT).split(b"\0")
    except OSError:
        return None
    named = next((entry[len(_LEASE) :] for entry in entries if entry.startswith(_LEASE)), b"")
    text = named.decode("ascii", "replace")
    return text if len(text) == _LEASE_DIGITS and text.isalnum() and text.isascii() else None


@functools.cache
def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
