"""History of the devices in SQLite: one writer (the sampler), any number of readers of the same account.

Raw samples are kept for a day. A full disk or a broken file costs history and nothing else.
"""

from __future__ import annotations

import logging
import os
import sqlite3

from gpulab.config import Settings
from gpulab.hardware.devices import Device, Snapshot
from gpulab.telemetry.series import Sample, recent, store_path

__all__ = ["RAW_SECONDS", "SCHEMA_VERSION", "Sample", "Store", "recent", "store_path"]

SCHEMA_VERSION = 1
RAW_SECONDS = 24 * 3600.0

_PRUNE_EVERY = 600  # samples, so ten minutes
_LOG = logging.getLogger(__name__)

# A device's row holds its number, not its UUID: 36 bytes a sample less, in the table and in its key.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS devices (id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, name TEXT);
CREATE TABLE IF NOT EXISTS samples (
    time REAL NOT NULL, device INTEGER NOT NULL REFERENCES devices (id), gpu_percent REAL,
    memory_used_bytes INTEGER, power_watts REAL, temperature_celsius REAL,
    PRIMARY KEY (time, device)
) WITHOUT ROWID;
"""
_INSERT = "INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?, ?)"


class Store:
    """The writer's end. `append` never raises: it says once why history is being lost."""

    def __init__(self, settings: Settings) -> None:
        self.path = store_path(settings)
        self._connection: sqlite3.Connection | None = None
        self._ids: dict[str, int] = {}
        self._appended = 0
        self._set_aside = False
        self._said = ""

    def append(self, snapshot: Snapshot) -> bool:
        """Write the devices of one snapshot; True if they are in the history now."""
        try:
            self._write(snapshot)
        except sqlite3.DatabaseError as error:
            self._recover(error)
            return False
        except (OSError, _FutureSchemaError) as error:
            self._say(f"History is not written: {error}")
            return False
        self._said = ""
        return True

    def close(self) -> None:
        """Close the file; the next `append` opens it again."""
        connection, self._connection = self._connection, None
        self._ids = {}
        if connection is not None:
            connection.close()

    def _write(self, snapshot: Snapshot) -> None:
        connection = self._connection or self._open()
        with connection:
            rows = [
                self._row(connection, device, snapshot.time) for device in snapshot.devices if device.uuid
            ]
            connection.executemany(_INSERT, rows)
        if self._appended % _PRUNE_EVERY == 0:
            with connection:
                connection.execute("DELETE FROM samples WHERE time < ?", (snapshot.time - RAW_SECONDS,))
        self._appended += 1

    def _row(self, connection: sqlite3.Connection, device: Device, now: float) -> tuple[object, ...]:
        return (
            round(now, 3),
            self._id(connection, device),
            device.gpu_percent,
            device.memory.used_bytes,
            device.power_watts,
            device.temperature_celsius,
        )

    def _id(self, connection: sqlite3.Connection, device: Device) -> int:
        uuid = device.uuid or ""
        if uuid not in self._ids:
            connection.execute(
                "INSERT INTO devices (uuid, name) VALUES (?, ?) "
                "ON CONFLICT (uuid) DO UPDATE SET name = excluded.name",
                (uuid, device.name),
            )
            found = connection.execute("SELECT id FROM devices WHERE uuid = ?", (uuid,)).fetchone()
            self._ids[uuid] = int(found[0])
        return self._ids[uuid]

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=0.5)
        try:
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            if version > SCHEMA_VERSION:
                raise _FutureSchemaError(
                    f"{self.path} was written by a newer gpulab; update gpulab or move the file."
                )
            _choose_journal(connection)
            connection.executescript(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _recover(self, error: sqlite3.DatabaseError) -> None:
        """After a broken file start anew, once; after anything else (a full disk, a lock) just go on."""
        self.close()
        broken = not isinstance(error, sqlite3.OperationalError)
        if broken and not self._set_aside:
            self._set_aside = True
            self._say(f"History is started anew, the broken file is {self.path}.broken: {error}")
            _move_aside(self.path)
        else:
            self._say(f"History is not written: {error}")

    def _say(self, message: str) -> None:
        if message != self._said:
            _LOG.warning(message)
            self._said = message


class _FutureSchemaError(Exception):
    """The file has a schema that this version does not know."""


def _choose_journal(connection: sqlite3.Connection) -> None:
    """WAL, so that readers never wait; where it cannot work (no shared memory) SQLite keeps its own."""
    try:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    except sqlite3.OperationalError:
        mode = connection.execute("PRAGMA journal_mode = TRUNCATE").fetchone()[0]
    connection.execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'OFF'}")


def _move_aside(path: str) -> None:
    try:
        os.replace(path, f"{path}.broken")
        for suffix in ("-wal", "-shm", "-journal"):
            if os.path.exists(path + suffix):
                os.unlink(path + suffix)
    except OSError as error:
        _LOG.warning("The broken history %s cannot be moved: %s", path, error)
