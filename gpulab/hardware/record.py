"""The sampler's newest snapshot, as a file: how long-lived programs see the GPUs without NVML.

One writer (telemetry.sampler; the host's sampler, where one serves), any number of readers, at some 50
microseconds a read. The file is replaced whole by a rename, so a reader sees the old snapshot or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from typing import Any

from gpulab.config import Settings
from gpulab.hardware import hosting
from gpulab.hardware.devices import Snapshot

__all__ = ["latest", "paths", "publish", "record_path"]

_FUTURE_SECONDS = 5.0
_OWN_MODE, _HOST_MODE = 0o600, 0o644
_WRITE = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_END = "end"
"""The time once more, at the text's end: where it differs from the one at the beginning, two are mixed."""


def record_path(settings: Settings) -> str:
    """Where the record of this account's sampler lies."""
    return os.path.join(settings.machine_dir, "latest.json")


def paths(settings: Settings) -> tuple[str, ...]:
    """The files that `latest` looks at: a stat call tells whether one of them is new."""
    return hosting.record_path(settings), record_path(settings)


def publish(
    snapshot: Snapshot, settings: Settings, *, host: bool = False, history: str | None = None
) -> None:
    """Make `snapshot` the newest one. Raises OSError if the directory cannot be written.

    Parameters
    ----------
    host
        For all accounts of this host, instead of this one.
    history
        The absolute path of the history that goes with it, for those who read it.
    """
    path = hosting.record_path(settings) if host else record_path(settings)
    content = {**snapshot.to_dict(), "history": history, _END: snapshot.time}
    data = json.dumps(content, separators=(",", ":")).encode()  # whole: json.dump takes four times as long
    try:
        _replace(path, data, _HOST_MODE if host else _OWN_MODE)
    except OSError as error:
        if error.errno not in _FULL or not _overwrite(path, data):
            raise


def _replace(path: str, data: bytes, mode: int) -> None:
    temporary = f"{path}.{os.getpid()}"
    descriptor = os.open(temporary, _WRITE | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with open(descriptor, "wb") as file:
            if hasattr(os, "fchmod"):
                os.fchmod(descriptor, mode)  # whatever the umask
            file.write(data)
        now = time.time()
        os.utime(temporary, (now, now))  # by this machine's clock, also where the file system has its own
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _overwrite(path: str, data: bytes) -> bool:
    """In place, on a disk that is full; a reader knows half a record by its end. Raises OSError."""
    descriptor = os.open(path, _WRITE)
    try:
        data = data.ljust(os.fstat(descriptor).st_size)
        return os.pwrite(descriptor, data, 0) == len(data)
    finally:
        os.close(descriptor)


def latest(settings: Settings, *, max_age: float | None = None) -> Snapshot | None:
    """The newest snapshot of the sampler; None if there is none, or none at most `max_age` seconds old.

    The host's while one publishes, else this account's.
    """
    shared = _of_host(settings)
    if shared is not None and hosting.serving(settings):
        return _within(shared, max_age)
    own = _of_account(settings)
    if shared is not None and (own is None or own.time < shared.time):
        own = shared  # its sampler has just ended, and this account's has not begun
    return _within(own, max_age)


def _within(snapshot: Snapshot | None, max_age: float | None) -> Snapshot | None:
    if snapshot is None:
        return None
    if max_age is not None and not -_FUTURE_SECONDS < time.time() - snapshot.time <= max_age:
        return None
    return snapshot._replace(source="sampler")


def _of_host(settings: Settings) -> Snapshot | None:
    found = hosting.read(settings)
    return None if found is None else _within(_snapshot(found), hosting.FRESH_SECONDS)


def _of_account(settings: Settings) -> Snapshot | None:
    try:
        with open(record_path(settings), "rb") as file:
            return _snapshot(json.loads(file.read()))
    except (OSError, ValueError, RecursionError):
        return None


def _snapshot(found: Any) -> Snapshot | None:
    """None if it is none, or half of one and half of the next."""
    try:
        return Snapshot.from_dict(found) if found.get(_END, found["time"]) == found["time"] else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
