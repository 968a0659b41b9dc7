"""A pause: nobody of ours asks NVML until it ends, so that a GPU can be reset.

A marker file, looked at before NVML is: root's beside the leases holds for every account of the host,
an account's own for itself. The marker's date says since when.
"""

import contextlib
import os
import stat
import time

from gpulab import config
from gpulab.config import Settings
from gpulab.errors import GpulabError
from gpulab.hardware import hosting

__all__ = ["pause", "paused", "resume"]

_NAME = "paused"


def paused(settings: Settings) -> str | None:
    """One sentence if a pause holds now, the host's before the account's own; two looks at files."""
    found = _marker(os.path.join(settings.lease_dir or config.HOST_LEASE_DIR, _NAME))
    if found is not None and found.st_uid == 0:  # others may make a name there, but no file of root's
        return _sentence("on this host", found, "sudo gpulab resume")
    found = _marker(os.path.join(settings.machine_dir, _NAME))
    return None if found is None else _sentence("for this account", found, "gpulab resume")


def _sentence(where: str, marker: os.stat_result, remedy: str) -> str:
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(marker.st_mtime))
    return f"Asking for the GPUs is paused {where} since {since}; `{remedy}` ends that."


def pause(settings: Settings) -> str:
    """Begin one and say so, as root for the host (if its leases are host-wide), else for this account.

    One that holds already stays as it is. Raises GpulabError if the marker cannot be written.
    """
    path = _own_marker(settings)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644))
    except OSError as error:
        raise GpulabError(
            f"Nothing is paused: {path} cannot be written ({error.strerror}); make that possible, try again."
        ) from error
    found = paused(settings)
    if found is None:
        raise GpulabError(f"Nothing is paused: {path} is no plain file of this account's; remove it.")
    return found


def resume(settings: Settings) -> bool:
    """End every pause that is this account's to end; False if there was none.

    Raises GpulabError if one holds on, because it is root's or its marker cannot be removed.
    """
    ended = False
    for path in {_own_marker(settings), os.path.join(settings.machine_dir, _NAME)}:
        try:
            os.unlink(path)
            ended = True
        except FileNotFoundError:
            continue
        except OSError as error:
            raise GpulabError(f"{path} cannot be removed ({error.strerror}); remove it to resume.") from error
    left = paused(settings)
    if left is not None:
        raise GpulabError(f"It stays so: {left}")
    return ended


def _own_marker(settings: Settings) -> str:
    root = hosting.lease_root(settings)
    with contextlib.suppress(OSError):
        found = os.lstat(root)
        if os.geteuid() == 0 == found.st_uid and found.st_mode & stat.S_IWOTH:
            return os.path.join(root, _NAME)
    return os.path.join(settings.machine_dir, _NAME)


def _marker(path: str) -> os.stat_result | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None
