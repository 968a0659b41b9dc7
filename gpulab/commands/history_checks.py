"""For `gpulab doctor`: where the history lies, how large it is and how far it goes back, and what ails it."""

# ruff: noqa: S608 - the queries are put together from our own constants

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from gpulab.commands.finding import Finding
from gpulab.config import Settings
from gpulab.units import format_bytes, format_duration

__all__ = ["check_history"]

_PARTS = ("", "-wal", "-journal")


def check_history(settings: Settings) -> Iterator[Finding]:
    """One finding on the file, one more where its disk or an earlier mishap is worth a word."""
    from gpulab.telemetry import series
    from gpulab.telemetry.storing import journal

    path = series.history_path(settings)
    ails = series.trouble(settings)
    if ails is not None:
        yield Finding("history", "fail", ails)
    elif not os.path.exists(path):
        yield Finding("history", "ok", f"none yet; it begins in {path} with the first sample")
    else:
        yield Finding("history", "ok", f"{path}, {format_bytes(_size(path))}, {_covered(settings)}")
    kind = journal.file_system(path)
    if kind is not None and journal.is_remote(kind):
        message = (
            f"{path} is on {kind}, where a write-ahead log cannot work, so each write costs more; "
            "set GPULAB_DATA_DIR to a local disk"
        )
        yield Finding("history", "note", message)
    yield from _set_aside(path)


def _size(path: str) -> int:
    return sum(os.stat(path + part).st_size for part in _PARTS if os.path.exists(path + part))


def _covered(settings: Settings) -> str:
    """How far back it goes."""
    from gpulab.telemetry.reading import file as reading
    from gpulab.telemetry.storing import schema

    earliest: list[float] = []
    with reading.opened(settings) as connection:
        if connection is not None:
            for table, unit in (("raw", 1000), ("minutes", 1), ("hours", 1)):
                (key,) = connection.execute(f"SELECT min(key) FROM {table}").fetchone()
                if key is not None:
                    earliest.append((key >> schema.ID_BITS) / unit)
    if not earliest:
        return "without a sample yet"
    seconds = time.time() - min(earliest)
    return f"goes back {format_duration(max(0.0, seconds))}"


def _set_aside(path: str) -> Iterator[Finding]:
    """Old files that were kept when the history was started anew."""
    folder, name = os.path.split(path)
    try:
        kept = sorted(entry for entry in os.listdir(folder) if entry.startswith(f"{name}.broken"))
    except OSError:
        return
    if kept:
        message = f"it was started anew, and the broken file is kept: {', '.join(kept)} in {folder}"
        yield Finding("history", "note", message)
