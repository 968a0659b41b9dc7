"""Samples integrated over time: what a device did in a minute or an hour, and between any two instants.

Each sample tells of the time since the one before it. A distance of more than three sampling periods
is a gap (the machine slept, nobody sampled): nothing is integrated over it.
"""

# ruff: noqa: S608 - the queries are put together from our own constants

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpulab.telemetry.storing.schema import HOUR, ID_BITS, MAX_ID, key_of

__all__ = [
    "MOST_WATTS",
    "PERIODS",
    "Interval",
    "Mean",
    "has_finer",
    "integrate",
    "intervals",
    "longest_period",
    "roll_up_hour",
]

PERIODS = 3
"""Sampling periods without a sample that are no gap yet."""
MOST_WATTS = 10_000
_RAW = """SELECT key, period, gpu_percent, memory_used_bytes, power_milliwatts, temperature_celsius,
    energy_millijoules FROM raw WHERE key >= ? AND key < ? ORDER BY key"""
_HOUR = f"""INSERT OR REPLACE INTO hours
SELECT (:start << {ID_BITS}) | (key & {MAX_ID}) AS hour, sum(milliseconds),
    sum(gpu_percent * max(milliseconds, 1)) / sum(iif(gpu_percent IS NULL, NULL, max(milliseconds, 1))),
    max(gpu_max),
    sum(memory_used_bytes * max(milliseconds, 1.0))
        / sum(iif(memory_used_bytes IS NULL, NULL, max(milliseconds, 1))),
    max(memory_max_bytes),
    sum(power_milliwatts * max(milliseconds, 1.0))
        / sum(iif(power_milliwatts IS NULL, NULL, max(milliseconds, 1))),
    max(temperature_max_celsius), sum(energy_millijoules)
FROM minutes WHERE key >= :start << {ID_BITS} AND key < (:start + {HOUR}) << {ID_BITS}
GROUP BY key & {MAX_ID}"""
_USAGE_HOUR = f"""INSERT OR REPLACE INTO usage_hours
SELECT :start, device, uid, sum(used_milliseconds), sum(idle_milliseconds), sum(energy_millijoules)
FROM usage_minutes WHERE start >= :start AND start < :start + {HOUR} GROUP BY device, uid"""


class Interval(NamedTuple):
    """The time between two samples of one device, or the part of it that lies in a range."""

    device: int
    start: int
    """Milliseconds since the epoch."""
    milliseconds: int
    gpu_percent: float | None
    memory_used_bytes: int | None
    power_milliwatts: float | None
    temperature_celsius: float | None
    energy_millijoules: float | None


class Mean:
    """A mean weighted by time; None until something is known."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._weight = 0

    def add(self, value: float | None, weight: int) -> None:
        if value is not None:
            self._sum += value * weight
            self._weight += weight

    @property
    def value(self) -> float | None:
        return self._sum / self._weight if self._weight else None


def longest_period(connection: sqlite3.Connection) -> float:
    """The longest sampling period, in seconds, that any row of this file was written with."""
    found = connection.execute("SELECT value FROM meta WHERE name = 'longest_period'").fetchone()
    return 1.0 if found is None else float(found[0])


def intervals(connection: sqlite3.Connection, since: float, until: float) -> Iterator[Interval]:
    """What the samples tell of a range (seconds since the epoch), device by device in turn of time."""
    reach = PERIODS * longest_period(connection)
    first, last = round(since * 1000), round(until * 1000)
    before: dict[int, tuple[int, float | None, float | None]] = {}
    for key, period, percent, memory, power, celsius, energy in connection.execute(
        _RAW, (key_of(since - reach), key_of(until + reach))
    ):
        device, now = key & MAX_ID, key >> ID_BITS
        earlier = before.get(device)
        before[device] = (now, power, energy)
        if earlier is None or now - earlier[0] > PERIODS * 1000 * (period or 1):
            continue
        start, length = max(earlier[0], first), now - earlier[0]
        part = min(now, last) - start
        if part > 0:
            joules = _energy(earlier, now, power, energy)
            share = None if joules is None else joules * part / length
            yield Interval(device, start, part, percent, memory, power, celsius, share)


def _energy(
    earlier: tuple[int, float | None, float | None], now: int, power: float | None, energy: float | None
) -> float | None:
    """By the counter, unless it began anew or says what no device can take; then by the power."""
    then, power_then, energy_then = earlier
    if energy is not None and energy_then is not None:
        taken = energy - energy_then
        if 0 <= taken <= MOST_WATTS * (now - then):  # watts by milliseconds are millijoules
            return taken
    if power is None or power_then is None:
        return None
    return (power + power_then) / 2 * (now - then) / 1000


def integrate(start: int, found: Iterable[Interval]) -> list[tuple[object, ...]]:
    """Rows of the table `minutes` for one minute (its first second), a row a device."""
    devices: dict[int, list[Interval]] = {}
    for interval in found:
        devices.setdefault(interval.device, []).append(interval)
    return [(start << ID_BITS | device, *_row(parts)) for device, parts in devices.items()]


def _row(parts: list[Interval]) -> tuple[object, ...]:
    percent, memory, power = Mean(), Mean(), Mean()
    for part in parts:
        percent.add(part.gpu_percent, part.milliseconds)
        memory.add(part.memory_used_bytes, part.milliseconds)
        power.add(part.power_milliwatts, part.milliseconds)
    energies = [part.energy_millijoules for part in parts if part.energy_millijoules is not None]
    return (
        sum(part.milliseconds for part in parts),
        None if percent.value is None else round(percent.value, 3),
        _most(part.gpu_percent for part in parts),
        None if memory.value is None else round(memory.value),
        _most(part.memory_used_bytes for part in parts),
        None if power.value is None else round(power.value),
        _most(part.temperature_celsius for part in parts),
        round(sum(energies)) if energies else None,
    )


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def has_finer(connection: sqlite3.Connection, start: int, length: int) -> bool:
    """Whether the raw rows of a minute, or the minutes of an hour (its first second), are still there."""
    table, scale = ("minutes", 1) if length == HOUR else ("raw", 1000)
    span = ((start * scale) << ID_BITS, ((start + length) * scale) << ID_BITS)
    return (
        connection.execute(f"SELECT 1 FROM {table} WHERE key >= ? AND key < ? LIMIT 1", span).fetchone()
        is not None
    )


def roll_up_hour(connection: sqlite3.Connection, start: int) -> None:
    """Sum the minutes of one hour (its first second), and the usage in them."""
    connection.execute("DELETE FROM usage_hours WHERE start = ?", (start,))
    connection.execute(_HOUR, {"start": start})
    connection.execute(_USAGE_HOUR, {"start": start})
