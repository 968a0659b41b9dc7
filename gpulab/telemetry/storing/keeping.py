"""What the writer does once a minute: roll up what is complete, drop what is old, keep within the bound."""

# ruff: noqa: S608 - the queries are put together from our own constants

from __future__ import annotations

import sqlite3

from gpulab.telemetry.storing.rollups import PERIODS, integrate, intervals, longest_period, roll_up_hour
from gpulab.telemetry.storing.schema import HOUR, ID_BITS, MINUTE, TEN, key_of
from gpulab.telemetry.storing.usage import attribute, presence, tenures

__all__ = ["HOURS_SECONDS", "MINUTES_SECONDS", "RAW_SECONDS", "free", "is_told", "prune", "roll_up", "shrink"]

RAW_SECONDS = 24 * 3600.0
MINUTES_SECONDS = 30 * 86400.0
HOURS_SECONDS = 366 * 86400.0
_AT_ONCE = 20
"""Minutes rolled up between two samples, so that a backlog never holds up sampling."""
_SPARED = 600
"""Seconds of raw samples that no bound takes."""
_CHUNKS = 8
_FREED_AT_ONCE = 4096
_INSERT = "INSERT OR REPLACE INTO %s VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_USAGE = "INSERT OR REPLACE INTO usage_minutes VALUES (?, ?, ?, ?, ?, ?)"


def roll_up(connection: sqlite3.Connection, now: float, *, before: float | None = None) -> None:
    """Sum the minutes and hours that have ended, the oldest first; all of them up to `before` if given."""
    current = now // MINUTE * MINUTE
    query = "SELECT start FROM pending WHERE length = ? AND start != ? AND start < ? ORDER BY start LIMIT ?"
    bound, most = (2**60, _AT_ONCE) if before is None else (before, -1)
    for (start,) in connection.execute(query, (MINUTE, current, bound, most)).fetchall():
        _roll_up_minute(connection, start)
    this_hour = now // HOUR * HOUR
    for (start,) in connection.execute(query, (HOUR, this_hour, bound, most)).fetchall():
        if not _has_minutes_pending(connection, start):
            roll_up_hour(connection, start)
            connection.execute("DELETE FROM pending WHERE length = ? AND start = ?", (HOUR, start))


def _has_minutes_pending(connection: sqlite3.Connection, hour: int) -> bool:
    query = "SELECT 1 FROM pending WHERE length = ? AND start >= ? AND start < ? LIMIT 1"
    return connection.execute(query, (MINUTE, hour, hour + HOUR)).fetchone() is not None


def _roll_up_minute(connection: sqlite3.Connection, start: int) -> None:
    """From all its raw rows, so that doing it again gives the same."""
    span = (float(start), float(start + MINUTE))
    found = list(intervals(connection, *span))
    reach = PERIODS * longest_period(connection)
    tallies = attribute(found, presence(connection, *span, reach), tenures(connection, *span))
    connection.executemany(_INSERT % "minutes", integrate(start, found))
    for ten in range(start, start + MINUTE, TEN):
        within = (part for part in found if (part.start + part.milliseconds // 2) // 1000 // TEN * TEN == ten)
        connection.executemany(_INSERT % "tens", integrate(ten, within))
    connection.execute("DELETE FROM usage_minutes WHERE start = ?", (start,))
    connection.executemany(
        _INSERT_USAGE,
        [
            (
                start,
                device,
                uid,
                *map(_whole, (tally.used, tally.idle, tally.energy)),
            )
            for (device, uid), tally in tallies.items()
        ],
    )
    connection.execute("DELETE FROM pending WHERE length = ? AND start = ?", (MINUTE, start))
    connection.execute("INSERT OR IGNORE INTO pending VALUES (?, ?)", (HOUR, start // HOUR * HOUR))


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def is_told(connection: sqlite3.Connection, now: float, reach: float) -> bool:
    """Whether the history tells of this instant already: a clock that was set back adds nothing."""
    later = connection.execute("SELECT min(key) FROM raw WHERE key >= ?", (key_of(now) + (1 << ID_BITS),))
    found = later.fetchone()[0]
    if found is not None and (found >> ID_BITS) <= (now + reach) * 1000:
        return True
    minute, hour = int(now // MINUTE * MINUTE), int(now // HOUR * HOUR)
    if _any(connection, "minutes", minute, minute + MINUTE):
        return not _any(connection, "raw", minute * 1000, (minute + MINUTE) * 1000)
    return _any(connection, "hours", hour, hour + HOUR) and not _any(connection, "minutes", hour, hour + HOUR)


def _any(connection: sqlite3.Connection, table: str, first: int, last: int) -> bool:
    query = f"SELECT 1 FROM {table} WHERE key >= ? AND key < ? LIMIT 1"
    return connection.execute(query, (first << ID_BITS, last << ID_BITS)).fetchone() is not None


def prune(connection: sqlite3.Connection, now: float) -> None:
    """Drop what is older than its kind is kept, by a clock that can be believed."""
    _drop_raw(connection, _oldest_pending(connection, MINUTE, (now - RAW_SECONDS) // MINUTE * MINUTE))
    _drop_minutes(connection, _oldest_pending(connection, HOUR, (now - MINUTES_SECONDS) // HOUR * HOUR))
    _drop_hours(connection, (now - HOURS_SECONDS) // HOUR * HOUR)


def _oldest_pending(connection: sqlite3.Connection, length: int, cut: float) -> float:
    """What is not rolled up yet is not dropped."""
    query = "SELECT min(start) FROM pending WHERE length = ?"
    found = connection.execute(query, (length,)).fetchone()[0]
    return cut if found is None else min(cut, found)


def _drop_raw(connection: sqlite3.Connection, cut: float) -> None:
    for table in ("raw", "processes"):
        connection.execute(f"DELETE FROM {table} WHERE key < ?", (key_of(cut),))
    connection.execute("DELETE FROM tens WHERE key < ?", (int(cut) << ID_BITS,))


def _drop_minutes(connection: sqlite3.Connection, cut: float) -> None:
    connection.execute("DELETE FROM minutes WHERE key < ?", (int(cut) << ID_BITS,))
    connection.execute("DELETE FROM usage_minutes WHERE start < ?", (cut,))


def _drop_hours(connection: sqlite3.Connection, cut: float) -> None:
    connection.execute("DELETE FROM hours WHERE key < ?", (int(cut) << ID_BITS,))
    connection.execute("DELETE FROM usage_hours WHERE start < ?", (cut,))
    connection.execute("DELETE FROM leases WHERE since < ? AND until < ?", (cut, cut))


def shrink(connection: sqlite3.Connection, now: float, bound: int) -> bool:
    """Drop the oldest raw rows, then minutes, then hours, until less than `bound` bytes are in use.

    True if something was dropped. Pages that fell free go back to the file system, some at a time.
    """
    dropped = False
    for _ in range(_CHUNKS):
        if _used(connection) <= bound * (0.9 if dropped else 1.0) or not _drop_oldest(connection, now):
            break
        dropped = True
    return dropped


def free(connection: sqlite3.Connection) -> None:
    """Give pages back if a quarter of the file is empty; fewer are soon filled again."""
    pages, empty = _pragma(connection, "page_count"), _pragma(connection, "freelist_count")
    if empty > max(256, pages // 4):
        # Not `execute`, which frees a single page: each one is a step of the statement
        connection.executescript(f"PRAGMA incremental_vacuum({_FREED_AT_ONCE})")


def _used(connection: sqlite3.Connection) -> int:
    pages = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
    return pages * _pragma(connection, "page_size")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _drop_oldest(connection: sqlite3.Connection, now: float) -> bool:
    """A tenth of the oldest kind of rows that is left."""
    newest = key_of(now - _SPARED)
    cut = _tenth(connection, "raw", newest)
    if cut is not None:
        moment = (cut >> ID_BITS) / 1000 // MINUTE * MINUTE + MINUTE
        roll_up(connection, now, before=moment)
        _drop_raw(connection, min(moment, now - _SPARED))
        return True
    cut = _tenth(connection, "minutes", int(now - HOUR) << ID_BITS)
    if cut is not None:
        _drop_minutes(connection, (cut >> ID_BITS) // HOUR * HOUR + HOUR)
        return True
    cut = _tenth(connection, "hours", int(now - HOUR) << ID_BITS)
    if cut is not None:
        _drop_hours(connection, (cut >> ID_BITS) + HOUR)
    return cut is not None


def _tenth(connection: sqlite3.Connection, table: str, newest: int) -> int | None:
    """The key up to which the oldest tenth of the time of a table lies."""
    query = f"SELECT min(key), max(key) FROM {table} WHERE key < ?"
    first, last = connection.execute(query, (newest,)).fetchone()
    return None if first is None else int(first + (last - first) // 10)
