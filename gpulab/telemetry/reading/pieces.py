"""A range of time in as few roll-ups as it takes; its ends, and what is new, from finer rows."""

from __future__ import annotations

import math
from typing import Any

from gpulab.config import Settings
from gpulab.telemetry import series
from gpulab.telemetry.reading.file import opened
from gpulab.telemetry.series import Rollup
from gpulab.telemetry.storing.rollups import has_finer, integrate, intervals
from gpulab.telemetry.storing.schema import HOUR, MAX_ID, MINUTE

__all__ = ["pieces"]

_LEVELS = (("minute", MINUTE), ("hour", HOUR))
_HOURS_FROM = 2 * 86400.0
"""A shorter range is put together from minutes."""


def pieces(settings: Settings, since: float, until: float) -> list[Rollup]:
    """What is known of each device from `since` to `until` (seconds since the epoch), nothing twice.

    To be summed up: a piece's time is where it begins, its length may be anything. Never raises.
    """
    return _parts(settings, since, until, len(_LEVELS) if until - since > _HOURS_FROM else 1)


def _parts(settings: Settings, since: float, until: float, place: int) -> list[Rollup]:
    """`place` 0 stands for raw rows, 1 for minutes, 2 for hours."""
    if since >= until:
        return []
    if place == 0:
        return _from_raw(settings, since, until)
    level, length = _LEVELS[place - 1]
    first, last = math.ceil(since / length) * length, math.floor(until / length) * length
    if first >= last:
        return _end(settings, since, until, place)
    whole = series.rollups(settings, first, last, level=level)
    rolled = max((part.time + length for part in whole), default=float(first))
    fresh = _parts(settings, rolled, until, place - 1)
    if not fresh and rolled < until:
        fresh = _in_part(settings, max(rolled, last), until, place)
    return [*_end(settings, since, first, place), *whole, *fresh]


def _end(settings: Settings, since: float, until: float, place: int) -> list[Rollup]:
    """A part of an hour or a minute: from finer rows, or where those are gone its share of the whole."""
    return _parts(settings, since, until, place - 1) or _in_part(settings, since, until, place)


def _in_part(settings: Settings, since: float, until: float, place: int) -> list[Rollup]:
    level, length = _LEVELS[place - 1]
    found = []
    for begin in range(math.floor(since / length) * length, math.ceil(until), length):
        if _has_finer(settings, begin, length):
            continue  # they say that there is a gap
        share = (min(until, begin + length) - max(since, begin)) / length
        for part in series.rollups(settings, begin, begin + length, level=level) if share > 0 else ():
            energy = None if part.energy_joules is None else part.energy_joules * share
            found.append(part._replace(seconds=part.seconds * share, energy_joules=energy))
    return found


def _has_finer(settings: Settings, begin: int, length: int) -> bool:
    with opened(settings) as connection:
        return connection is not None and has_finer(connection, begin, length)
    return False


def _from_raw(settings: Settings, since: float, until: float) -> list[Rollup]:
    with opened(settings) as connection:
        if connection is not None:
            names = dict(connection.execute("SELECT id, uuid FROM devices"))
            summed: list[Any] = integrate(0, intervals(connection, since, until))
            return [_rollup(since, names[key & MAX_ID], row) for key, *row in summed if key & MAX_ID in names]
    return []


def _rollup(since: float, uuid: str, row: list[Any]) -> Rollup:
    """From the row of a table, which counts in thousandths."""
    milliseconds, percent, most, memory, memory_most, power, celsius, energy = row
    power, energy = (None if value is None else value / 1000 for value in (power, energy))
    return Rollup(
        since, uuid, milliseconds / 1000, percent, most, memory, memory_most, power, celsius, energy
    )
