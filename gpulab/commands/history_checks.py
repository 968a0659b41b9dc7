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

_TABLES = (("raw", 1000, 0), ("minutes", 1, 60), ("hours", 1, 3600))
"""Each with the units of its keys in a second, and the seconds of a row."""
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
    """How far back it goes: a roll-up counts from its start, unless what it was made of begins within it."""
    from gpulab.telemetry.reading import file as reading
    from gpulab.telemetry.storing import schema

    begin: float | None = None
    with reading.opened(settings) as connection:
        if connection is not None:
            for table, unit, length in _TABLES:
                (key,) = connection.execute(f"SELECT min(key) FROM {table}").fetchone()
                start = None if key is None else (key >> schema.ID_BITS) / unit
                if start is not None and (begin is None or start + length <= begin):
                    begin = start
    if begin is None:
        return "without a sample yet"
    seconds = time.time() - begin
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
