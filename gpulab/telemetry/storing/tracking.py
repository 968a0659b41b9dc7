"""What changed since the last sample: processes that came, grew or went, leases taken, changed or ended."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence

from gpulab.allocation.records import LeaseRecord
from gpulab.hardware.devices import Device, Process
from gpulab.telemetry.storing.encoding import Names, percent_of, size_of
from gpulab.telemetry.storing.schema import MAX_ID, MINUTE, key_of

__all__ = ["CLOSE_SECONDS", "LeaseLog", "ProcessLog"]

CLOSE_SECONDS = 0.9
"""About once a second, as seldom as NVML renews a process's share; samples come a little early or late."""

_STEP_BYTES, _STEP_SHARE = 8 * 2**20, 0.005
"""A process's memory has changed when it differs by more than both, the second as a share of itself."""
_LOOK_SECONDS = 15.0
"""A lease that is missed so soon after it was seen has ended just now; later, nobody knows when."""
_SEEN_EVERY = 4.0
_MOST_TEXT = 200
_INSERT_PROCESS = "INSERT OR REPLACE INTO processes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_LEASE = "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)"
_END_LEASE = "UPDATE leases SET until = ?, seen = min(seen, ?) WHERE since = ? AND id = ?"


class _Seen:
    """What was last written of a process, and its utilization since then."""

    __slots__ = ("count", "face", "memory", "named", "percent", "written")

    def __init__(
        self, written: float, face: tuple[object, ...], named: tuple[object, ...], memory: int | None
    ) -> None:
        self.written, self.face, self.named, self.memory = written, face, named, memory
        self.percent, self.count = 0.0, 0

    def add(self, percent: float | None) -> None:
        if percent is not None:
            self.percent += percent
            self.count += 1

    @property
    def mean(self) -> float | None:
        return round(self.percent / self.count, 2) if self.count else None


class ProcessLog:
    """Writes a row of a process when it changes, at the beginning of each minute, and more often if asked."""

    def __init__(self, connection: sqlite3.Connection, names: Names) -> None:
        self._connection = connection
        self._names = names
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._every: float = MINUTE

    def write(
        self,
        now: float,
        devices: Iterable[tuple[int, Device]],
        leases: Sequence[LeaseRecord],
        *,
        every: float = MINUTE,
    ) -> None:
        """Take note of the processes of devices by their numbers. Raises sqlite3.Error."""
        self._every = every
        rows = [row for number, device in devices for row in self._rows(now, number, device, leases)]
        first = key_of(now)  # more than a key has room for are written with the next sample
        self._connection.executemany(
            _INSERT_PROCESS, [(first + place, *row) for place, row in enumerate(rows[:MAX_ID])]
        )

    def _rows(
        self, now: float, number: int, device: Device, leases: Sequence[LeaseRecord]
    ) -> Iterator[tuple[object, ...]]:
        if device.processes is None:
            return
        there: dict[int, Process] = {}
        for process in device.processes:
            there.setdefault(process.pid, process)
        holding = [lease for lease in leases if device.uuid in lease.gpus]
        for pid, process in there.items():
            memory = size_of(process.memory_bytes, device.memory.total_bytes)
            seen = self._seen.get((number, pid))
            face = (process.uid, process.user, process.command, process.type, leases)
            named = self._named(process, holding) if seen is None or seen.face != face else seen.named
            if seen is not None:
                seen.add(percent_of(process.gpu_percent))
            if seen is None or self._is_due(now, seen, named, memory):
                mean = percent_of(process.gpu_percent) if seen is None else seen.mean
                self._seen[number, pid] = _Seen(now, face, named, memory)
                yield (number, pid, *named[:3], memory, mean, named[3], 0)
        for key in [key for key in self._seen if key[0] == number and key[1] not in there]:
            gone = self._seen.pop(key)
            yield (number, key[1], *gone.named[:3], gone.memory, gone.mean, gone.named[3], 1)

    def _named(self, process: Process, holding: list[LeaseRecord]) -> tuple[object, ...]:
        uid = process.uid
        command = None if process.command is None else process.command[:_MOST_TEXT]
        return (
            self._names.owner(uid, process.user),
            self._names.command(command),
            int(process.type == "graphics"),
            _lease_of(process, uid, holding),
        )

    def _is_due(self, now: float, seen: _Seen, named: tuple[object, ...], memory: int | None) -> bool:
        if named != seen.named or now // MINUTE != seen.written // MINUTE:
            return True
        if now - seen.written >= self._every:
            return True
        if memory is None or seen.memory is None:
            return memory is not seen.memory
        return abs(memory - seen.memory) > max(_STEP_BYTES, _STEP_SHARE * seen.memory)


def _lease_of(process: Process, uid: int | None, holding: list[LeaseRecord]) -> str | None:
    """The only lease of its account on the device; of several that of its own process, if one is."""
    own = [lease for lease in holding if uid is not None and lease.uid == uid]
    if len(own) > 1:
        from gpulab.allocation.holders import lease_of

        return lease_of(process, own)
    return own[0].id if own else None


class LeaseLog:
    """Writes a span when a lease is taken, ends it when the lease is gone, and both when its terms change."""

    def __init__(self, connection: sqlite3.Connection, names: Names) -> None:
        self._connection = connection
        self._names = names
        looked = connection.execute("SELECT value FROM meta WHERE name = 'looked'").fetchone()
        self._looked: float | None = None if looked is None else float(looked[0])
        self._open = {row[0]: row[1:] for row in self._read()}

    def _read(self) -> Iterator[tuple[object, ...]]:
        yield from self._connection.execute(
            "SELECT id, since, uuids, mode, memory_bytes, priority, notebook FROM leases WHERE until IS NULL"
        )

    def write(self, now: float, leases: Sequence[LeaseRecord], booted: float) -> None:
        """Compare with the leases held now; none can be older than `booted`. Raises sqlite3.Error.

        A lease that names no device of this history is of another machine, as a simulated one beside it.
        """
        live = {lease.id: lease for lease in leases if not lease.waits and self._is_ours(lease)}
        looked = self._looked
        fresh = looked is not None and 0 <= now - looked <= _LOOK_SECONDS
        before = dict(self._open)
        for name in before.keys() - live.keys():
            self._end(name, now if fresh or looked is None else looked)
        for name, lease in live.items():
            terms = _terms(lease)
            if name not in before:
                self._begin(lease, terms, min(now, max(lease.since, booted, looked or 0.0)), now)
            elif before[name][1:] != terms:
                self._end(name, now)
                self._begin(lease, terms, now, now)
        if looked is None or before != self._open or not 0 <= now - looked < _SEEN_EVERY:
            self._see(now)

    def _is_ours(self, lease: LeaseRecord) -> bool:
        return any(self._names.has_device(uuid) for uuid in lease.gpus)

    def _begin(self, lease: LeaseRecord, terms: tuple[object, ...], since: float, now: float) -> None:
        owner = self._names.owner(lease.uid, lease.user)
        since = round(since, 3)
        self._connection.execute(_INSERT_LEASE, (lease.id, owner, *terms, since, now))
        self._open[lease.id] = (since, *terms)

    def _end(self, name: object, until: float) -> None:
        since = float(self._open.pop(name)[0])  # type: ignore[arg-type]
        last = max(since, round(until, 3))
        self._connection.execute(_END_LEASE, (last, last, since, name))

    def _see(self, now: float) -> None:
        self._connection.execute("UPDATE leases SET seen = ? WHERE until IS NULL", (round(now, 3),))
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('looked', ?)", (round(now, 3),))
        self._looked = now


def _terms(lease: LeaseRecord) -> tuple[object, ...]:
    notebook = None if lease.notebook is None else lease.notebook[:_MOST_TEXT]
    return (json.dumps(lease.gpus), lease.mode, lease.memory_bytes, lease.priority, notebook)
