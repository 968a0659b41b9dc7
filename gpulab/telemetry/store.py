"""The writer's end of the history: one SQLite file, one writer (the sampler), any number of readers.

Raw rows are kept for a day, minutes for 30 days, hours for a year, all within a size. A full disk
or a broken file costs history and nothing else. Where the clock is set back, what is already told of
a time stands: nothing is overwritten and nothing counted twice.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence

from gpulab.allocation.records import LeaseRecord
from gpulab.config import Settings
from gpulab.hardware.devices import Device, Snapshot
from gpulab.telemetry.reading.file import suspect_path
from gpulab.telemetry.series import Sample, recent, store_path
from gpulab.telemetry.storing import journal, keeping, schema
from gpulab.telemetry.storing.encoding import Names, device_row, is_time
from gpulab.telemetry.storing.keeping import RAW_SECONDS
from gpulab.telemetry.storing.rollups import PERIODS
from gpulab.telemetry.storing.schema import ID_BITS, MINUTE, SCHEMA_VERSION, HistoryError, key_of
from gpulab.telemetry.storing.steadiness import Steadiness, elapsed
from gpulab.telemetry.storing.tracking import CLOSE_SECONDS, LeaseLog, ProcessLog
from gpulab.units import format_bytes

__all__ = ["RAW_SECONDS", "SCHEMA_VERSION", "Sample", "Store", "recent", "store_path"]

_LOG = logging.getLogger(__name__)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_ASIDE_EVERY = 600.0
_INSERT = "INSERT OR IGNORE INTO raw VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class Store:
    """`append` never raises: it says once why history is being lost, and goes on as soon as it can."""

    def __init__(
        self,
        settings: Settings,
        *,
        path: str | None = None,
        size_bound: int | None = None,
        period: float = 1.0,
        clock: Callable[[], float] = elapsed,
    ) -> None:
        """Nothing is opened yet.

        Parameters
        ----------
        path
            The file of a service, which other accounts may read; None means the account's own.
        size_bound
            Bytes; None means the setting `history_max_size`.
        period
            Seconds from one sample to the next; three times that without one is a gap.
        clock
            Seconds that never jump, beside which jumps of the snapshots' times are seen.
        """
        self.path = store_path(settings) if path is None else path
        self.size_bound = settings.history_max_size if size_bound is None else size_bound
        self.period = period
        self._mode = 0o600 if path is None else 0o644
        self._clock = Steadiness(clock)
        self._file: _File | None = None
        self._set_aside: float | None = None
        self._said = ""

    def append(
        self, snapshot: Snapshot, leases: Sequence[LeaseRecord] | None = None, *, close: bool = False
    ) -> bool:
        """Write one snapshot, and who holds what if `leases` tells; True if the devices are written.

        `close` keeps a row of each process each second, for a report that wants its share of the time.
        """
        if not is_time(snapshot.time):
            self._say(f"History is not written: {snapshot.time!r} is no time; set this machine's clock.")
            return False
        self._clock.look(snapshot.time)
        try:
            file = self._file or self._open()
            written = file.write(snapshot, leases, booted=snapshot.time - self._clock.clock(), close=close)
            if file.minute != snapshot.time // MINUTE:
                file.minute = snapshot.time // MINUTE
                self._keep(file, snapshot.time)
        except (sqlite3.Error, HistoryError, OSError) as error:
            self._recover(error)
            return False
        if written:
            self._said = ""
        else:
            self._say("The clock was set back: what the history tells of this time already stands.")
        return written

    def close(self) -> None:
        """Close the file; the next `append` opens it again."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(sqlite3.Error):
                file.connection.close()

    def _open(self) -> _File:
        with contextlib.suppress(FileExistsError):  # SQLite gives the mode to the files beside it
            created = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode)
            os.fchmod(created, self._mode)
            os.close(created)
        connection = sqlite3.connect(self.path, timeout=0.5)
        try:
            _prepare(connection, self.path)
            self._file = _File(connection, self.path, self.period)
        except BaseException:
            connection.close()
            raise
        return self._file

    def _keep(self, file: _File, now: float) -> None:
        """What is due once a minute."""
        if not file.is_in_place():
            self.close()  # it was moved or removed: the next sample begins a new one
            return
        if file.is_damaged():
            raise _damage("a reader found it damaged")
        with file.connection:
            if self._clock.believes(now, file.trusted):
                file.trust(now)
                keeping.prune(file.connection, now)
            if keeping.shrink(file.connection, now, self.size_bound) and not file.is_full:
                file.is_full = True
                bound = format_bytes(self.size_bound)
                _LOG.warning("The history has reached its bound of %s: its oldest samples give way.", bound)
        keeping.free(file.connection)

    def _recover(self, error: Exception) -> None:
        """After damage start anew; after anything else (a full disk, a lock) just go on."""
        self.close()
        now = self._clock.clock()
        rested = self._set_aside is None or now - self._set_aside > _ASIDE_EVERY
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED and rested:
            self._set_aside = now
            self._say(f"History is started anew, the broken file is {self.path}.broken: {error}")
            _move_aside(self.path)
        else:
            where = f"{self.path}: " if isinstance(error, HistoryError) else ""
            self._say(f"History is not written: {where}{error}")

    def _say(self, message: str) -> None:
        if message != self._said:
            _LOG.warning(message)
            self._said = message


class _File:
    """An open history."""

    def __init__(self, connection: sqlite3.Connection, path: str, period: float) -> None:
        self.connection = connection
        self.path = path
        self.minute: float | None = None
        self.is_full = False
        self.trusted = self._meta("trusted")
        self._period = None if period == 1 else period
        self._reach = PERIODS * period
        self._names = Names(connection)
        self._processes = ProcessLog(connection, self._names)
        self._leases = LeaseLog(connection, self._names)
        self._live: Sequence[LeaseRecord] = ()
        newest = connection.execute("SELECT max(key) FROM raw").fetchone()[0]
        self._newest = 0 if newest is None else newest >> ID_BITS
        self._inode = os.stat(path).st_ino
        with connection:
            if period > (self._meta("longest_period") or 1.0):
                self._set_meta("longest_period", period)
            if newest is None and self.trusted is None:
                self.trusted = 0.0

    def write(
        self, snapshot: Snapshot, leases: Sequence[LeaseRecord] | None, *, booted: float, close: bool
    ) -> bool:
        """One transaction; False if the history tells of this time already."""
        now = snapshot.time
        ahead = round(now * 1000) - self._newest
        told = ahead == 0 or (ahead < 0 and keeping.is_told(self.connection, now, self._reach))
        with self.connection:
            devices = self._numbered(snapshot)
            if leases is not None:
                self._leases.write(now, leases, booted)
                self._live = leases
            if not told:
                self._write_devices(now, devices, close=close)
            if self.minute != now // MINUTE:
                keeping.roll_up(self.connection, now)
        return not told

    def _numbered(self, snapshot: Snapshot) -> list[tuple[int, Device]]:
        devices = []
        for device in snapshot.devices:
            number = self._names.device(device.uuid, device.name) if device.uuid else None
            if number is not None:
                devices.append((number, device))
        return devices

    def _write_devices(self, now: float, devices: list[tuple[int, Device]], *, close: bool) -> None:
        rows = [(key_of(now, number), *device_row(device), self._period) for number, device in devices]
        self.connection.executemany(_INSERT, rows)
        self._processes.write(now, devices, self._live, every=CLOSE_SECONDS if close else MINUTE)
        if rows and self.minute != now // MINUTE:
            self.connection.execute(
                "INSERT OR IGNORE INTO pending VALUES (?, ?)", (MINUTE, int(now // MINUTE * MINUTE))
            )
        self._newest = max(self._newest, round(now * 1000))

    def trust(self, now: float) -> None:
        """Note that the clock could be believed."""
        self.trusted = now
        self._set_meta("trusted", round(now))

    def is_in_place(self) -> bool:
        try:
            return os.stat(self.path).st_ino == self._inode
        except OSError:
            return False

    def is_damaged(self) -> bool:
        """Whether a reader met damage that is really there: a look at the whole file, only then."""
        note = suspect_path(self.path)
        if not os.path.lexists(note):
            return False
        with contextlib.suppress(OSError):
            os.unlink(note)
        return bool(self.connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok")

    def _meta(self, name: str) -> float | None:
        found = self.connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if found is None else float(found[0])

    def _set_meta(self, name: str, value: float) -> None:
        self.connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    """Bring a file of any earlier version to this one. Raises HistoryError for one of the future."""
    version = schema.version_of(connection)
    if version < SCHEMA_VERSION:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of a file that has tables: with VACUUM
    journal.choose(connection, path)
    if version == 1:
        schema.migrate(connection)
        with contextlib.suppress(sqlite3.OperationalError):  # no room for it: then pages are only used again
            connection.execute("VACUUM")
    elif version == 0:
        schema.create(connection)


def _damage(message: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(message)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _move_aside(path: str) -> None:
    """The file before that one, if there is one, stays too."""
    try:
        if os.path.exists(f"{path}.broken"):
            os.replace(f"{path}.broken", f"{path}.broken.1")
        os.replace(path, f"{path}.broken")
        for suffix in ("-wal", "-shm", "-journal", ".suspect"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + suffix)
    except OSError as error:
        _LOG.warning("The broken history %s cannot be moved: %s", path, error)
