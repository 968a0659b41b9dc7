"""What `gpulab serve` publishes for every account of this host, and when it is believed.

Below the lease directory, in `host`, which only root and whom root chose can write; there is a directory
in it for each machine, so that a container or a simulated machine never reads another's.
"""

import errno
import os
import stat
import sys
import time
from typing import Any

from gpulab import config
from gpulab.config import Settings

__all__ = [
    "FRESH_SECONDS",
    "history_path",
    "host_dir",
    "is_safe",
    "lease_root",
    "lock_path",
    "machine_path",
    "read",
    "record_path",
    "serving",
    "trusted",
    "wake_path",
    "watches_path",
]

FRESH_SECONDS = 3.0
"""An older record is of a host's sampler that is gone, or hangs: then an account's own takes its place."""
_AHEAD_SECONDS = 5.0
_MAX_BYTES = 4 * 2**20
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK if sys.platform != "win32" else 0
_WAKE = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK if sys.platform != "win32" else 0


def lease_root(settings: Settings) -> str:
    """Where leases lie, or would lie: nothing is made or checked here."""
    if settings.lease_dir is not None:
        return settings.lease_dir
    if os.path.isdir(config.HOST_LEASE_DIR):
        return config.HOST_LEASE_DIR
    return os.path.join(settings.runtime_dir, "leases")


def host_dir(settings: Settings) -> str:
    """What root, or the owner of the lease directory, makes for those who may publish."""
    return os.path.join(lease_root(settings), "host")


def machine_path(settings: Settings) -> str:
    """The part of `host_dir` for this machine, real or simulated."""
    return os.path.join(host_dir(settings), os.path.basename(settings.machine_dir))


def record_path(settings: Settings) -> str:
    """The newest snapshot for all accounts."""
    return os.path.join(machine_path(settings), "latest.json")


def wake_path(settings: Settings) -> str:
    """A FIFO that every account may write, to ask for a sample now."""
    return os.path.join(machine_path(settings), "wake")


def watches_path(settings: Settings) -> str:
    """Where every account may say that it watches closely."""
    return os.path.join(machine_path(settings), "watches")


def lock_path(settings: Settings) -> str:
    """Locked while a service publishes; only its own account can open it, so nobody else can lock it."""
    return os.path.join(machine_path(settings), "serve.lock")


def is_safe(settings: Settings) -> bool:
    """Whether only root, this account, or whom root chose can write in `host_dir`."""
    if sys.platform == "win32":
        return False
    try:
        root = os.lstat(lease_root(settings))
        return _is_safe_root(root) and _is_safe_below(os.lstat(host_dir(settings)), root)
    except OSError:
        return False


def trusted(settings: Settings) -> str | None:
    """`machine_path`, if it is there and nobody else can have written in it; else None."""
    path = machine_path(settings)
    try:
        if not is_safe(settings):
            return None
        machine = os.lstat(path)
    except OSError:
        return None
    return path if stat.S_ISDIR(machine.st_mode) and not machine.st_mode & 0o002 else None


def serving(settings: Settings) -> bool:
    """Whether a host's sampler publishes now, for a few system calls: a dead one is known at once."""
    machine = trusted(settings)
    if machine is None:
        return False
    try:
        status = os.lstat(os.path.join(machine, "latest.json"))
        is_plain = _is_publishers(status, machine)
    except OSError:
        return False
    age = time.time() - status.st_mtime
    return is_plain and -_AHEAD_SECONDS < age <= FRESH_SECONDS and _listens(machine)


def read(settings: Settings) -> dict[str, Any] | None:
    """The JSON object of the host's record, however old; None if there is none that is believed."""
    machine = trusted(settings)
    if machine is None:
        return None
    import json  # not on the way of one-shot commands, which only ask where things lie

    try:
        descriptor = os.open(os.path.join(machine, "latest.json"), _READ)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not _is_publishers(status, machine) or status.st_size > _MAX_BYTES:
                return None
            found = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def history_path(settings: Settings) -> str | None:
    """The history that the host's sampler keeps; None while none publishes."""
    found = read(settings) if serving(settings) else None
    path = None if found is None else found.get("history")
    return path if isinstance(path, str) and os.path.isabs(path) else None


def _is_safe_root(status: os.stat_result) -> bool:
    """As for leases: root's, with the sticky bit where others may write, or this account's alone."""
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (0, os.getuid()):
        return False
    if not status.st_mode & 0o022:
        return True
    return status.st_uid == 0 and bool(status.st_mode & stat.S_ISVTX)


def _is_safe_below(status: os.stat_result, root: os.stat_result) -> bool:
    """Anybody may make a name in the host's lease directory; only its owner's is believed."""
    others = 0o002 if root.st_uid == 0 else 0o022  # root may have chosen a group to publish
    return stat.S_ISDIR(status.st_mode) and status.st_uid == root.st_uid and not status.st_mode & others


def _is_publishers(status: os.stat_result, machine: str) -> bool:
    """Whether a file is a plain one of those who may publish."""
    return stat.S_ISREG(status.st_mode) and status.st_uid in (0, os.getuid(), os.lstat(machine).st_uid)


def _listens(machine: str) -> bool:
    """Whether a process has the FIFO open for reading: it ends with the process, however that ended."""
    try:
        os.close(os.open(os.path.join(machine, "wake"), _WAKE))
    except OSError as error:
        return error.errno not in (errno.ENXIO, errno.ENOENT)  # else it cannot be asked, and its age must do
    return True
