"""The sampler's newest snapshot, as a file: how long-lived programs see the GPUs without NVML.

One writer (telemetry.sampler; the host's sampler, where one serves), any number of readers, at some 50
microseconds a read. The file is replaced whole by a rename, so a reader sees the old snapshot or the new one.
"""

from __future__ import annotations

import contextlib
import json
import os
import time

from gpulab.config import Settings
from gpulab.hardware import hosting
from gpulab.hardware.devices import Snapshot

__all__ = ["latest", "paths", "publish", "record_path"]

_FUTURE_SECONDS = 5.0
_OWN_MODE, _HOST_MODE = 0o600, 0o644


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
    temporary = f"{path}.{os.getpid()}"
    content = snapshot.to_dict() if history is None else {**snapshot.to_dict(), "history": history}
    text = json.dumps(content, separators=(",", ":"))  # whole: json.dump takes four times as long
    mode = _HOST_MODE if host else _OWN_MODE
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), mode)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            if host:
                os.fchmod(descriptor, mode)  # whatever the umask
            file.write(text)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


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
    try:
        return _within(None if found is None else Snapshot.from_dict(found), hosting.FRESH_SECONDS)
    except (ValueError, KeyError, TypeError):
        return None


def _of_account(settings: Settings) -> Snapshot | None:
    try:
        with open(record_path(settings), encoding="utf-8") as file:
            return Snapshot.from_dict(json.load(file))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
