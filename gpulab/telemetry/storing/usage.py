"""Whose a device's work was: each interval's utilization and energy, shared out among accounts.

A sole holder gets the device's. Several share it by their processes' own utilization where the
driver tells it, else equally among the holders with processes. Without a lease it is the processes'.
"""

# ruff: noqa: S608 - the queries are put together from our own constants

from __future__ import annotations

import json
import sqlite3
from bisect import bisect
from collections.abc import Iterable
from typing import NamedTuple

from gpulab.telemetry.storing.rollups import Interval
from gpulab.telemetry.storing.schema import ID_BITS, MINUTE, key_of

__all__ = ["NOBODY", "Share", "Tally", "attribute", "held_seconds", "presence", "tenures"]

NOBODY = -1
"""Stands in the tables for an account that could not be told."""
_PROCESSES = f"""SELECT key >> {ID_BITS}, device, pid, coalesce(owners.uid, {NOBODY}), type, gpu_percent,
    gone
FROM processes JOIN owners ON owners.id = processes.owner WHERE key >= ? AND key < ? ORDER BY key"""
_LEASES = f"""SELECT coalesce(owners.uid, {NOBODY}), uuids, since, coalesce(until, seen), until IS NULL
FROM leases JOIN owners ON owners.id = leases.owner WHERE since < ? AND (until IS NULL OR until > ?)"""
_LOOK_BACK = 2.5 * MINUTE
"""A process that is there has a row each minute."""


class Row(NamedTuple):
    """What the history says of one process at one instant."""

    time: int
    uid: int
    type: str
    gpu_percent: float | None
    gone: bool


class Share(NamedTuple):
    """A part of a device's work; the parts of all accounts make 1."""

    part: float
    percent: float | None
    """The account's utilization of the device."""


class Tally:
    """What one account did on one device; None until something is known."""

    def __init__(self) -> None:
        self.used: float | None = None
        self.idle: float | None = None
        self.energy: float | None = None

    def add(self, interval: Interval, share: Share, *, held: bool) -> None:
        length = interval.milliseconds
        if share.percent is not None:
            self.used = (self.used or 0.0) + share.percent / 100 * length
            if held:
                self.idle = (self.idle or 0.0) + (length if share.percent == 0 else 0)
        if interval.energy_millijoules is not None:
            self.energy = (self.energy or 0.0) + interval.energy_millijoules * share.part


Presence = dict[int, dict[int, list[Row]]]
"""By device and process, in order of time."""
Tenures = dict[int, list[tuple[int, int, int]]]
"""By device: account, first and last millisecond of a lease."""


def presence(connection: sqlite3.Connection, since: float, until: float, reach: float = 0.0) -> Presence:
    """The rows that say which processes were on which device in a range."""
    found: Presence = {}
    span = (key_of(since - _LOOK_BACK - reach), key_of(until + _LOOK_BACK + reach))
    for time, device, pid, uid, kind, percent, gone in connection.execute(_PROCESSES, span):
        row = Row(time, uid, kind, percent, bool(gone))
        found.setdefault(device, {}).setdefault(pid, []).append(row)
    return found


def tenures(connection: sqlite3.Connection, since: float, until: float) -> Tenures:
    """The leases of a range; one still held when last seen lasts to the end of what is asked for."""
    ids = dict(connection.execute("SELECT uuid, id FROM devices"))
    found: Tenures = {}
    for uid, uuids, begun, ended, lives in connection.execute(_LEASES, (until, since)):
        last = round((max(ended, until) if lives else ended) * 1000)
        for uuid in json.loads(uuids):
            if uuid in ids:
                found.setdefault(ids[uuid], []).append((uid, round(begun * 1000), last))
    return found


def held_seconds(connection: sqlite3.Connection, since: float, until: float) -> dict[tuple[str, int], float]:
    """By device and account: how long a lease named the device. Two leases at once count once."""
    spans: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for uid, uuids, begun, ended, _ in connection.execute(_LEASES, (until, since)):
        start, end = max(begun, since), min(ended, until)
        for uuid in json.loads(uuids):
            if end > start:
                spans.setdefault((uuid, uid), []).append((start, end))
    return {key: _united(sorted(found)) for key, found in spans.items()}


def _united(spans: list[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def attribute(found: Iterable[Interval], present: Presence, leases: Tenures) -> dict[tuple[int, int], Tally]:
    """By device and account: what each did in these intervals."""
    tallies: dict[tuple[int, int], Tally] = {}
    told: dict[tuple[int, int], dict[int, float | None]] = {}
    times = {
        device: sorted(row.time for rows in processes.values() for row in rows)
        for device, processes in present.items()
    }
    for interval in found:
        middle = interval.start + interval.milliseconds // 2
        holders = {uid for uid, first, last in leases.get(interval.device, ()) if first <= middle < last}
        since = (interval.device, bisect(times.get(interval.device, []), middle))
        if since not in told:  # between two rows nothing changes
            told[since] = _percents(present.get(interval.device, {}), middle)
        percents = told[since]
        for uid, share in _shares(interval.gpu_percent, holders, percents).items():
            tally = tallies.setdefault((interval.device, uid), Tally())
            tally.add(interval, share, held=uid in holders)
    return tallies


def _percents(processes: dict[int, list[Row]], middle: int) -> dict[int, float | None]:
    """Each account's utilization by its processes; None where one of them does not tell.

    A row's utilization is the mean since the row before, so an instant is told of by the next row.
    """
    there: dict[str, dict[int, float | None]] = {"compute": {}, "graphics": {}}
    for rows in processes.values():
        past = next((row for row in reversed(rows) if row.time <= middle), None)
        if past is None or past.gone:
            continue
        telling = next((row for row in rows if row.time > middle and not row.gone), past)
        sums = there["graphics" if telling.type == "graphics" else "compute"]
        known = sums.get(telling.uid, 0.0)
        sums[telling.uid] = (
            None if known is None or telling.gpu_percent is None else known + telling.gpu_percent
        )
    return there["compute"] or there["graphics"]


def _shares(percent: float | None, holders: set[int], percents: dict[int, float | None]) -> dict[int, Share]:
    """Every holder's part, and that of whoever else works there."""
    working = {uid: known for uid, known in percents.items() if known}
    sharing = [uid for uid in holders if uid in percents]
    known = bool(percents) and all(percents[uid] is not None for uid in sharing or percents)
    if len(holders) == 1 and not working.keys() - holders:
        weights = dict.fromkeys(holders, 1.0)
    elif known and working:
        weights = {uid: value for uid, value in working.items() if value is not None}
    else:
        weights = dict.fromkeys(sharing or holders or percents or {NOBODY}, 1.0)
    if NOBODY in weights and not percents and not percent:
        return {}  # a device at rest that is nobody's
    total = sum(weights.values())
    shares = {}
    for uid in {*holders, *weights}:
        part = weights.get(uid, 0.0) / total
        shares[uid] = Share(part, None if percent is None else percent * part)
    return shares
