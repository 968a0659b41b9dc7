"""The tables of the history, version 2, and how times and devices become their keys.

A row's key holds its time and its device's number, in that order: rows are appended at the end of
the table, whose pages are then full, and a range of time is a range of keys.
"""

# ruff: noqa: S608 - the queries are put together from our own constants

from __future__ import annotations

import sqlite3

from gpulab.errors import GpulabError
from gpulab.hardware.devices import LINKS

__all__ = [
    "HOUR",
    "ID_BITS",
    "MAX_ID",
    "MINUTE",
    "SCHEMA_VERSION",
    "TEN",
    "HistoryError",
    "create",
    "key_of",
    "migrate",
    "pretend",
    "version_of",
]

SCHEMA_VERSION = 2
TEN, MINUTE, HOUR = 10, 60, 3600
ID_BITS = 10
MAX_ID = 2**ID_BITS - 1

_ROLLUP = """(
    key INTEGER PRIMARY KEY, milliseconds INTEGER NOT NULL, gpu_percent NUMERIC, gpu_max NUMERIC,
    memory_used_bytes NUMERIC, memory_max_bytes INTEGER, power_milliwatts INTEGER,
    temperature_max_celsius NUMERIC, energy_millijoules INTEGER
)"""
_USAGE = """(
    start INTEGER NOT NULL, device INTEGER NOT NULL, uid INTEGER NOT NULL,
    used_milliseconds INTEGER, idle_milliseconds INTEGER, energy_millijoules INTEGER,
    PRIMARY KEY (start, device, uid)
) WITHOUT ROWID"""
_TABLES = {
    "devices": "(id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, name TEXT)",
    "raw": f"""(
    key INTEGER PRIMARY KEY, gpu_percent NUMERIC, memory_used_bytes INTEGER, power_milliwatts INTEGER,
    temperature_celsius NUMERIC, memory_percent NUMERIC, sm_clock_mhz NUMERIC, throttle_reasons INTEGER,
    energy_millijoules INTEGER, {" INTEGER, ".join(LINKS)} INTEGER, state INTEGER, period NUMERIC
)""",
    "owners": "(id INTEGER PRIMARY KEY, uid INTEGER, name TEXT)",
    "commands": "(id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
    "processes": """(
    key INTEGER PRIMARY KEY, device INTEGER NOT NULL, pid INTEGER NOT NULL, owner INTEGER NOT NULL,
    command INTEGER, type INTEGER NOT NULL, memory_bytes INTEGER, gpu_percent NUMERIC, lease TEXT,
    gone INTEGER NOT NULL
)""",
    "leases": """(
    id TEXT NOT NULL, owner INTEGER NOT NULL, uuids TEXT NOT NULL, mode TEXT NOT NULL, memory_bytes INTEGER,
    priority TEXT NOT NULL, notebook TEXT, since REAL NOT NULL, seen REAL NOT NULL, until REAL,
    PRIMARY KEY (since, id)
) WITHOUT ROWID""",
    "tens": _ROLLUP,
    "minutes": _ROLLUP,
    "hours": _ROLLUP,
    "usage_minutes": _USAGE,
    "usage_hours": _USAGE,
    "pending": "(length INTEGER NOT NULL, start INTEGER NOT NULL, PRIMARY KEY (length, start)) WITHOUT ROWID",
    "meta": "(name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
}
# What version 1 called its table: a gpulab of that version goes on reading, and cannot write.
_FIRST = f"""CREATE VIEW IF NOT EXISTS samples AS
SELECT (key >> {ID_BITS}) / 1000.0 AS time, key & {MAX_ID} AS device, gpu_percent, memory_used_bytes,
    power_milliwatts / 1000.0 AS power_watts, temperature_celsius FROM raw"""
_FROM_FIRST = f"""SELECT (CAST(round(time * 1000) AS INTEGER) << {ID_BITS}) | device AS key, gpu_percent,
    memory_used_bytes, CAST(round(power_watts * 1000) AS INTEGER) AS power_milliwatts, temperature_celsius,
    NULL AS memory_percent, NULL AS sm_clock_mhz, NULL AS throttle_reasons, NULL AS energy_millijoules,
    {", ".join(f"NULL AS {link}" for link in LINKS)}, NULL AS state, NULL AS period"""


class HistoryError(GpulabError):
    """A history file that this version cannot use."""


def key_of(time: float, number: int = 0) -> int:
    """The key of a raw row, or the least one of that millisecond."""
    return (round(time * 1000) << ID_BITS) | number


def version_of(connection: sqlite3.Connection) -> int:
    """The version of the file's schema; 0 if it has none yet. Raises HistoryError for one of the future."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA_VERSION:
        raise HistoryError("it was written by a newer gpulab; update gpulab or move the file.")
    return version


def create(connection: sqlite3.Connection) -> None:
    """Make what is missing, in one transaction of its own."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        _make_tables(connection)


def migrate(connection: sqlite3.Connection) -> None:
    """From version 1, in place and in one transaction: a kill leaves one version or the other."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        if version_of(connection) == 1:
            connection.execute("ALTER TABLE samples RENAME TO samples_1")
            _make_tables(connection)
            connection.execute(
                f"INSERT OR REPLACE INTO raw {_FROM_FIRST} FROM samples_1 WHERE device <= {MAX_ID} ORDER BY 1"
            )
            connection.execute("DROP TABLE samples_1")
            _wait_for_rolling_up(connection)


def pretend(connection: sqlite3.Connection) -> None:
    """Let a file of version 1, open for reading only, look as one of this version, without writing to it."""
    for name, columns in _TABLES.items():
        if name == "raw":
            connection.execute(f"CREATE TEMP VIEW raw AS {_FROM_FIRST} FROM samples")
        elif name != "devices":
            connection.execute(f"CREATE TEMP TABLE {name} {columns}")
    _wait_for_rolling_up(connection)


def _wait_for_rolling_up(connection: sqlite3.Connection) -> None:
    """Note each minute that has raw rows as one that is not rolled up."""
    connection.execute(
        f"INSERT OR IGNORE INTO pending SELECT {MINUTE}, "
        f"(key >> {ID_BITS}) / 1000 / {MINUTE} * {MINUTE} AS start FROM raw GROUP BY start"
    )


def _make_tables(connection: sqlite3.Connection) -> None:
    for name, columns in _TABLES.items():
        connection.execute(f"CREATE TABLE IF NOT EXISTS {name} {columns}")
    connection.execute(_FIRST)
    connection.execute("CREATE INDEX IF NOT EXISTS live_leases ON leases (id) WHERE until IS NULL")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
