"""The sampler's newest snapshot, as a file: how long-lived programs see the GPUs without NVML.

One writer (telemetry.sampler), any number of readers, at some 50 microseconds a read. The file is
replaced whole by a rename, so a reader sees the old snapshot or the new one.
"""

from __future__ import annotations

import json
import os
import time

from gpulab.config import Settings
from gpulab.hardware.devices import Snapshot

__all__ = ["latest", "publish", "record_path"]

_FUTURE_SECONDS = 5.0


def record_path(settings: Settings) -> str:
    """Where the record of this account's sampler lies."""
    return os.path.join(settings.machine_dir, "latest.json")


def publish(snapshot: Snapshot, settings: Settings) -> None:
    """Make `snapshot` the newest one. Raises OSError if the directory cannot be written."""
    path = record_path(settings)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(snapshot.to_dict(), file, separators=(",", ":"))
    os.replace(temporary, path)


def latest(settings: Settings, *, max_age: float | None = None) -> Snapshot | None:
    """The newest snapshot of the sampler; None if there is none, or none at most `max_age` seconds old."""
    try:
        with open(record_path(settings), encoding="utf-8") as file:
            snapshot = Snapshot.from_dict(json.load(file))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    age = time.time() - snapshot.time
    if max_age is not None and not -_FUTURE_SECONDS < age <= max_age:
        return None
    return snapshot._replace(source="sampler")
