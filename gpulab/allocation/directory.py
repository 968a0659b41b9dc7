"""Where leases lie: one directory for the whole host if root made it, else one of this account.

Never a world-writable directory made by a user: its owner could delete the leases of others.
"""

import os
import stat
import sys
from typing import NamedTuple

from gpulab.config import HOST_LEASE_DIR, Settings
from gpulab.errors import LeaseDirectoryError

__all__ = ["LeaseDirectory", "account_name", "find", "set_up_host"]

_GUARD = "guard"


class LeaseDirectory(NamedTuple):
    """A directory that was found to be safe to use."""

    path: str
    scope: str
    """host: all accounts of this machine see these leases; account: only this one does"""

    def names(self, prefix: str) -> list[str]:
        """The file names that begin with `prefix`."""
        with os.scandir(self.path) as entries:
            return [entry.name for entry in entries if entry.name.startswith(prefix)]

    def open_guard(self) -> int:
        """Open the guard file, which in an account's directory is made at its first use.

        Raises LeaseDirectoryError if it is missing in the host's directory or not a plain file of
        the directory's owner.
        """
        path = os.path.join(self.path, _GUARD)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = _open_or_create(path, flags, create=self.scope == "account" or os.getuid() == 0)
        except OSError as error:
            remedy = "run `sudo gpulab setup`" if self.scope == "host" else f"remove {path}"
            raise LeaseDirectoryError(
                f"The guard of {self.path} cannot be opened ({error.strerror}); {remedy} and try again."
            ) from error
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.stat(self.path).st_uid:
            os.close(fd)
            raise LeaseDirectoryError(
                f"{path} is not a plain file of the directory's owner; remove it and run `gpulab doctor`."
            )
        return fd


def find(settings: Settings) -> LeaseDirectory:
    """Find the lease directory, making the account's own if need be. Raises LeaseDirectoryError."""
    if not sys.platform.startswith("linux"):
        raise LeaseDirectoryError("Leases need Linux; on this system gpulab compares on the CPU only.")
    if settings.lease_dir is not None:
        return _checked(settings.lease_dir, make=True)
    if os.path.isdir(HOST_LEASE_DIR):
        return _checked(HOST_LEASE_DIR, make=False)
    return _checked(os.path.join(settings.runtime_dir, "leases"), make=True)


def set_up_host(path: str = HOST_LEASE_DIR) -> LeaseDirectory:
    """Make the host's directory and its guard, as root. Raises LeaseDirectoryError.

    The directory is open to all with the sticky bit (mode 1777), so each account writes its own
    leases and only root could remove another's; the guard is root's and read-only.
    """
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise LeaseDirectoryError("Only root can set up leases for the whole host; run `sudo gpulab setup`.")
    if os.path.islink(path):
        raise LeaseDirectoryError(f"{path} is a link; remove it and run `gpulab setup` again.")
    os.makedirs(path, exist_ok=True)
    os.chown(path, 0, 0)
    os.chmod(path, 0o1777)  # noqa: S103 - as /tmp: the sticky bit is what protects
    directory = LeaseDirectory(path, "host")
    os.close(directory.open_guard())
    return directory


def account_name(uid: int) -> str | None:
    """The login name of a user id; None if this machine does not know it."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _open_or_create(path: str, flags: int, *, create: bool) -> int:
    # First without O_CREAT: with fs.protected_regular the kernel refuses it for another's file.
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        if not create:
            raise
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o444)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(fd, 0o444)
    return fd


def _checked(path: str, *, make: bool) -> LeaseDirectory:
    try:
        if make and not os.path.lexists(path):
            os.makedirs(path, mode=0o700, exist_ok=True)
        status = os.lstat(path)
    except OSError as error:
        raise LeaseDirectoryError(
            f"The lease directory {path} cannot be used ({error.strerror}); "
            "set GPULAB_LEASE_DIR to a directory of your own, or run `sudo gpulab setup`."
        ) from error
    if stat.S_ISLNK(status.st_mode) or not stat.S_ISDIR(status.st_mode):
        raise LeaseDirectoryError(
            f"The lease directory {path} is {'a link' if stat.S_ISLNK(status.st_mode) else 'no directory'}; "
            "name the real directory in GPULAB_LEASE_DIR, or run `sudo gpulab setup`."
        )
    return LeaseDirectory(path, _scope(path, status))


def _scope(path: str, status: os.stat_result) -> str:
    others_write = status.st_mode & 0o022
    if status.st_uid == 0 and others_write:
        if not status.st_mode & stat.S_ISVTX:
            raise LeaseDirectoryError(
                f"{path} lets users delete each other's leases (no sticky bit); run `sudo gpulab setup`."
            )
        return "host"
    if status.st_uid != os.getuid():
        owner = account_name(status.st_uid) or f"user {status.st_uid}"
        raise LeaseDirectoryError(
            f"The lease directory {path} belongs to {owner}; "
            "set GPULAB_LEASE_DIR to a directory of your own, or run `sudo gpulab setup`."
        )
    if others_write:
        raise LeaseDirectoryError(
            f"Others may write in the lease directory {path}; run `chmod 700 {path}`, or `sudo gpulab setup`."
        )
    return "account"
