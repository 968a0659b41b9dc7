"""Who held and used what in a range: whole hours and minutes from the roll-ups, the rest from raw rows."""

# ruff: noqa: S608 - the queries are put together from our own constants

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterable

from gpulab.config import Settings
from gpulab.telemetry.reading.file import opened
from gpulab.telemetry.storing.rollups import PERIODS, has_finer, intervals, longest_period
from gpulab.telemetry.storing.rows import Usage
from gpulab.telemetry.storing.schema import HOUR, ID_BITS, MINUTE
from gpulab.telemetry.storing.usage import NOBODY, attribute, held_seconds, presence, tenures

__all__ = ["usage"]

_ROLLED = """SELECT device, uid, sum(used_milliseconds), sum(idle_milliseconds), sum(energy_millijoules)
FROM %s WHERE start >= ? AND start < ? GROUP BY device, uid"""

Figures = tuple[float | None, float | None, float | None]
Sums = dict[tuple[int, int], Figures]
Span = tuple[float, float]


def usage(settings: Settings, since: float, until: float | None = None) -> list[Usage]:
    """What each account held, used and left idle on each device, summed over a range; the users' first.

    Held time is that of the leases, whether or not anybody sampled; use, idleness and energy only
    count while samples tell of them.
    """
    found: list[Usage] = []
    with opened(settings) as connection:
        if connection is not None:
            end = time.time() if until is None else until
            uuids = {number: uuid for uuid, number in connection.execute("SELECT uuid, id FROM devices")}
            sums = {(uuids[d], uid): figures for (d, uid), figures in _sums(connection, since, end).items()}
            held = held_seconds(connection, since, end)
            users = dict(connection.execute("SELECT uid, max(name) FROM owners GROUP BY uid"))
            for uuid, uid in sorted({*sums, *held}):
                used, idle, energy = (_in_seconds(v) for v in sums.get((uuid, uid), (None, None, None)))
                account = None if uid == NOBODY else uid
                time_held = held.get((uuid, uid), 0.0)
                found.append(Usage(account, users.get(account), uuid, time_held, used, idle, energy))
    return sorted(found, key=lambda entry: (entry.uid is None, entry.uid or 0, entry.uuid))


def _in_seconds(value: float | None) -> float | None:
    """Also joules: the tables hold thousandths."""
    return None if value is None else value / 1000


def _sums(connection: sqlite3.Connection, since: float, until: float) -> Sums:
    sums: Sums = {}
    if until <= since:
        return sums
    hours, minutes, rest = _split(connection, since, until)
    for table, spans in (("usage_hours", hours), ("usage_minutes", minutes)):
        for span in spans:
            _add(sums, connection.execute(_ROLLED % table, span))
    for span in rest:
        _add(sums, _from_raw(connection, span) or _in_part(connection, span))
    return sums


def _add(sums: Sums, rows: Iterable[tuple[int, int, float | None, float | None, float | None]]) -> None:
    for device, uid, *figures in rows:
        known = sums.get((device, uid), (None, None, None))
        added = [_sum(old, new) for old, new in zip(known, figures, strict=True)]
        sums[device, uid] = (added[0], added[1], added[2])


def _sum(old: float | None, new: float | None) -> float | None:
    return old if new is None else new + (old or 0)


def _split(
    connection: sqlite3.Connection, since: float, until: float
) -> tuple[list[Span], list[Span], list[Span]]:
    """Spans to be read from hours, from minutes and from raw rows; together they make the range."""
    waiting = {(length, start) for length, start in connection.execute("SELECT length, start FROM pending")}
    oldest = connection.execute(f"SELECT min(key) >> {ID_BITS} FROM minutes").fetchone()[0]
    hours, rest = _whole(since, until, HOUR, {start for length, start in waiting if length == HOUR})
    minutes: list[Span] = []
    raw: list[Span] = []
    for first, last in rest:
        if oldest is not None and last <= oldest:
            raw.append((first, last))  # a part of an hour of which only the sum is left
            continue
        whole, parts = _whole(first, last, MINUTE, {start for length, start in waiting if length == MINUTE})
        minutes += whole
        raw += parts
    return hours, minutes, raw


def _whole(since: float, until: float, length: int, waiting: set[int]) -> tuple[list[Span], list[Span]]:
    """The whole units of a range that are rolled up, as spans, and what is left over."""
    first, last = math.ceil(since / length) * length, math.floor(until / length) * length
    if first >= last:
        return [], [(since, until)] if since < until else []
    whole: list[Span] = []
    rest: list[Span] = [(since, first)] if since < first else []
    begun = first
    for start in sorted(start for start in waiting if first <= start < last):
        if begun < start:
            whole.append((begun, start))
        rest.append((start, start + length))
        begun = start + length
    if begun < last:
        whole.append((begun, last))
    if last < until:
        rest.append((last, until))
    return whole, rest


def _from_raw(
    connection: sqlite3.Connection, span: Span
) -> list[tuple[int, int, float | None, float | None, float | None]]:
    reach = PERIODS * longest_period(connection)
    tallies = attribute(
        intervals(connection, *span), presence(connection, *span, reach), tenures(connection, *span)
    )
    return [(device, uid, t.used, t.idle, t.energy) for (device, uid), t in tallies.items()]


def _in_part(
    connection: sqlite3.Connection, span: Span
) -> list[tuple[int, int, float | None, float | None, float | None]]:
    """The even share of the minute's sum, or of the hour's, in which the span lies; none of a gap."""
    for table, length in (("usage_minutes", MINUTE), ("usage_hours", HOUR)):
        start = math.floor(span[0] / length) * length
        if has_finer(connection, start, length):
            return []
        part = (span[1] - span[0]) / length
        rows = connection.execute(_ROLLED % table, (start, start + length)).fetchall()
        if rows and part <= 1:
            return [(device, uid, *(v and v * part for v in figures)) for device, uid, *figures in rows]
    return []
