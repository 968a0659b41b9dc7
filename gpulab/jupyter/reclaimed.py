"""Why a kernel was stopped for being idle: kept for whoever starts the next one of the same notebook.

A Jupyter server remembers, in memory and in a small file of the account's; the provisioner of the next
kernel asks once, and the kernel says it with its first cell.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from typing import Any, NamedTuple

from gpulab.config import Settings

__all__ = ["Reclaimed", "forget", "notice_for", "reclaimed_path", "remember"]

_KEEP_SECONDS = 7 * 86400.0
_KEEP_ENTRIES = 100
_MAX_FILE_BYTES = 2**21
_MAX_TEXT = 4096

_lock = threading.Lock()
_here: dict[str, list[Reclaimed]] = {}
"""What this process noted, by file: it counts also where the file cannot be written."""


class Reclaimed(NamedTuple):
    """A kernel that was stopped, and the sentence for its user."""

    time: float
    """Seconds since the epoch."""
    sentence: str
    notebook: str | None = None
    """The path of its notebook, as Jupyter told the kernel at its start."""
    kernel_id: str | None = None

    def concerns(self, notebook: str | None, kernel_id: str | None) -> bool:
        same_notebook = notebook is not None and notebook == self.notebook
        return same_notebook or (kernel_id is not None and kernel_id == self.kernel_id)


def reclaimed_path(settings: Settings) -> str:
    """Where this account's sentences are kept."""
    return os.path.join(settings.machine_dir, "reclaimed.json")


def remember(entry: Reclaimed, settings: Settings) -> None:
    """Keep the sentence for a week, or until it was given out. Never raises."""
    path = reclaimed_path(settings)
    with _lock:
        others = [old for old in _entries(path) if not old.concerns(entry.notebook, entry.kernel_id)]
        _keep(path, [*others, entry][-_KEEP_ENTRIES:])


def forget(entry: Reclaimed, settings: Settings) -> None:
    """The kernel was not stopped after all. Never raises."""
    path = reclaimed_path(settings)
    with _lock:
        _keep(path, [old for old in _entries(path) if old != entry])


def notice_for(notebook: str | None, kernel_id: str | None, settings: Settings) -> str | None:
    """What the user of a starting kernel should know of the one before it; given out once. Never raises."""
    path = reclaimed_path(settings)
    with _lock:
        entries = _entries(path)
        found = [entry for entry in entries if entry.concerns(notebook, kernel_id)]
        if not found:
            return None
        _keep(path, [entry for entry in entries if entry not in found])
    return found[-1].sentence


def _entries(path: str) -> list[Reclaimed]:
    """Those of the file and of this process that are not too old, oldest first."""
    now = time.time()
    both = dict.fromkeys([*_read(path), *_here.get(path, ())])
    fresh = [entry for entry in both if abs(now - entry.time) < _KEEP_SECONDS]
    return sorted(fresh, key=lambda entry: entry.time)


def _keep(path: str, entries: list[Reclaimed]) -> None:
    """Replace the file whole; memory keeps only what the file could not."""
    _here[path] = entries
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        temporary = f"{path}.{os.getpid()}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump([entry._asdict() for entry in entries], file)
        os.replace(temporary, path)
        _here[path] = []


def _read(path: str) -> list[Reclaimed]:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.loads(file.read(_MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    entries = content if isinstance(content, list) else []
    return [entry for entry in map(_checked, entries) if entry is not None]


def _checked(found: Any) -> Reclaimed | None:
    """An entry of the file, which may be damaged: what does not fit is passed over."""
    try:
        entry = Reclaimed(float(found["time"]), found["sentence"], found["notebook"], found["kernel_id"])
    except (KeyError, TypeError, ValueError):
        return None
    texts = (entry.sentence, entry.notebook or "", entry.kernel_id or "")
    return entry if all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in texts) else None
