"""A range of any length as a curve of a few hundred points, from the coarsest rows that are fine enough."""

# ruff: noqa: S608 - the queries are put together from our own constants

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Collection
from typing import Any

from gpulab.config import Settings
from gpulab.telemetry.reading.file import opened
from gpulab.telemetry.storing.rollups import PERIODS, longest_period
from gpulab.telemetry.storing.rows import Point
from gpulab.telemetry.storing.schema import HOUR, ID_BITS, MAX_ID, MINUTE, TEN

__all__ = ["reduced"]

_GAP = (None,) * 6
_RAW = f"""SELECT ((key >> {ID_BITS}) - :since) / :width AS part, key & {MAX_ID} AS device, avg(gpu_percent),
    max(gpu_percent), avg(memory_used_bytes), max(memory_used_bytes), avg(power_milliwatts) / 1000.0,
    avg(temperature_celsius), count(*)
FROM raw WHERE key >= :first AND key < :last GROUP BY part, device"""
# Each sample weighs as much as the time since the one before; three times as slow, so only where it matters
_RAW_CLOSE = f"""SELECT (moment - :since) / :width AS part, device,
    sum(gpu_percent * weight) / sum(iif(gpu_percent IS NULL, NULL, weight)), max(gpu_percent),
    sum(memory_used_bytes * weight) / sum(iif(memory_used_bytes IS NULL, NULL, weight)),
    max(memory_used_bytes),
    sum(power_milliwatts * weight) / 1000.0 / sum(iif(power_milliwatts IS NULL, NULL, weight)),
    sum(temperature_celsius * weight) / sum(iif(temperature_celsius IS NULL, NULL, weight))
FROM (SELECT key >> {ID_BITS} AS moment, key & {MAX_ID} AS device, gpu_percent, memory_used_bytes,
    power_milliwatts, temperature_celsius, 1.0 * min(coalesce(period, 1) * 1000,
    coalesce((key >> {ID_BITS}) - lag(key >> {ID_BITS}) OVER of_device, 1000)) AS weight
    FROM raw WHERE key >= :first AND key < :last
    WINDOW of_device AS (PARTITION BY key & {MAX_ID} ORDER BY key))
GROUP BY part, device"""
_ROLLED = f"""SELECT ((key >> {ID_BITS}) * 1000 - :since) / :width AS part, key & {MAX_ID} AS device,
    sum(gpu_percent * milliseconds) / sum(iif(gpu_percent IS NULL, NULL, milliseconds)), max(gpu_max),
    sum(memory_used_bytes * 1.0 * milliseconds) / sum(iif(memory_used_bytes IS NULL, NULL, milliseconds)),
    max(memory_max_bytes),
    sum(power_milliwatts * 1.0 * milliseconds) / 1000.0
        / sum(iif(power_milliwatts IS NULL, NULL, milliseconds)),
    max(temperature_max_celsius)
FROM %s WHERE key >= :first AND key < :last GROUP BY part, device"""
# Ten seconds are covered or not, so they weigh the same: that is three times as fast as weighing them
_TENS = f"""SELECT ((key >> {ID_BITS}) * 1000 - :since) / :width AS part, key & {MAX_ID} AS device,
    avg(gpu_percent), max(gpu_max), avg(memory_used_bytes), max(memory_max_bytes),
    avg(power_milliwatts) / 1000.0, max(temperature_max_celsius)
FROM tens WHERE key >= :first AND key < :last GROUP BY part, device"""
_CLOSE = 1.3
"""So many samples a second, beyond one in all, are those of a watch."""
_LEVELS = (("raw", 0), ("tens", TEN), ("minutes", MINUTE), ("hours", HOUR))

Part = tuple[Any, ...]
"""The number of a part of the range, the number of a device, and its figures."""


def reduced(
    settings: Settings,
    since: float,
    until: float | None = None,
    *,
    points: int = 300,
    uuids: Collection[str] | None = None,
) -> dict[str, list[Point]]:
    """At most about `points` points a device, evenly spaced from `since` to `until`, by UUID.

    Where there is nothing, one point without figures marks the gap. From roll-ups on, the temperature
    is the highest one.
    """
    end = time.time() if until is None else until
    curves: dict[str, list[Point]] = {}
    if end <= since:
        return curves
    with opened(settings) as connection:
        if connection is not None:
            names = {number: uuid for uuid, number in connection.execute("SELECT uuid, id FROM devices")}
            width, rows, spacing = _parts(connection, since, end, max(1, points))
            for device, curve in _curves(rows, since, width, spacing).items():
                uuid = names.get(device)
                if uuid is not None and (uuids is None or uuid in uuids):
                    curves[uuid] = curve
    return curves


def _curves(rows: list[Part], since: float, width: float, spacing: float) -> dict[int, list[Point]]:
    """By device. A tight loop: it takes most of the time that a page waits for its picture."""
    curves: dict[int, list[Point]] = {}
    last: dict[int, float] = {}
    make, first = Point._make, since + width / 2
    for part, device, *figures in rows:
        moment = first + part * width
        before = last.get(device)
        last[device] = moment
        if before is None:
            curves[device] = [make((moment, *figures))]
        elif moment > before:  # where two kinds of rows meet in one part the coarser stands
            if moment - before > spacing:
                curves[device].append(Point((before + moment) / 2, *_GAP))
            curves[device].append(make((moment, *figures)))
    return curves


def _parts(
    connection: sqlite3.Connection, since: float, end: float, points: int
) -> tuple[float, list[Part], float]:
    """The width of a part in seconds, the parts in order, and the distance between two that is a gap."""
    width = (end - since) / points
    level = _level(connection, since, width)
    width = max(width, _LEVELS[level][1], 0.001)
    found: list[list[Part]] = []
    upper = end
    for place in range(level + 1):  # the newest time is not rolled up yet
        rolled = [_rolled_until(connection, coarser, end) for coarser in range(place + 1, level + 1)]
        lower = max(since, *rolled) if rolled else since
        if lower < upper:
            found.insert(0, _read(connection, _LEVELS[place], since, width, (lower, upper)))
        upper = min(upper, lower)
    rows = [row for rows in found for row in rows]
    return width, rows, max(1.5 * width, PERIODS * longest_period(connection))


def _level(connection: sqlite3.Connection, since: float, width: float) -> int:
    """The coarsest rows that are fine enough; or coarser ones, where only those reach so far back."""
    level = max(place for place, (_, length) in enumerate(_LEVELS) if length <= width)
    oldest = [_reach(connection, table) for table, _ in _LEVELS]
    for coarser in range(level + 1, len(_LEVELS)):
        if since < oldest[level] and oldest[level] - oldest[coarser] >= _LEVELS[coarser][1]:
            level = coarser
    return level


def _reach(connection: sqlite3.Connection, table: str) -> float:
    """When the oldest row of a table begins."""
    found = connection.execute(f"SELECT min(key) >> {ID_BITS} FROM {table}").fetchone()[0]
    if found is None:
        return float("inf")
    return float(found) / 1000 if table == "raw" else float(found)


def _rolled_until(connection: sqlite3.Connection, level: int, end: float) -> float:
    """From when on only finer rows tell of the newest time; rows of a clock that ran ahead say nothing."""
    table, length = _LEVELS[level]
    query = f"SELECT max(key) >> {ID_BITS} FROM {table} WHERE key < ?"
    newest = connection.execute(query, (math.ceil(end) << ID_BITS,)).fetchone()[0]
    return float("-inf") if newest is None else float(newest) + length


def _read(
    connection: sqlite3.Connection,
    level: tuple[str, int],
    since: float,
    width: float,
    span: tuple[float, float],
) -> list[Part]:
    table, length = level
    scale = 1 if length else 1000
    values = {
        "since": round(since * 1000),
        "width": round(width * 1000),
        "first": int(span[0] * scale) << ID_BITS,
        "last": (math.ceil(span[1] * scale) + (not length)) << ID_BITS,
    }
    if not length:
        return _read_raw(connection, values)
    return connection.execute(_TENS if length == TEN else _ROLLED % table, values).fetchall()


def _read_raw(connection: sqlite3.Connection, values: dict[str, int]) -> list[Part]:
    """While somebody watches there are five samples a second, which must not weigh five times as much."""
    rows = connection.execute(_RAW, values).fetchall()
    if any(row[-1] * 1000 > values["width"] * _CLOSE + 1000 for row in rows):
        return connection.execute(_RAW_CLOSE, values).fetchall()
    return [row[:-1] for row in rows]
