"""The history as people and programs read it: samples, processes, leases, curves, roll-ups and usage.

Everything here opens the file for reading only and never raises; without a history there is nothing.
"""

# ruff: noqa: S608 - the queries are put together from our own constants

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Collection
from typing import Any

from gpulab.config import Settings
from gpulab.hardware.devices import DEVICE_STATES, LINKS
from gpulab.hardware.throttling import reasons_of
from gpulab.telemetry.reading.bills import usage
from gpulab.telemetry.reading.curves import reduced
from gpulab.telemetry.reading.file import history_path, opened, store_path, trouble
from gpulab.telemetry.storing.rows import LeaseSpan, Point, ProcessRow, Rollup, Sample, Usage
from gpulab.telemetry.storing.schema import ID_BITS, MAX_ID, key_of

__all__ = [
    "LeaseSpan",
    "Point",
    "ProcessRow",
    "Rollup",
    "Sample",
    "Usage",
    "history_path",
    "leases",
    "processes",
    "recent",
    "reduced",
    "rollups",
    "samples",
    "store_path",
    "trouble",
    "usage",
]

_FUTURE_SECONDS = 1.0
_LOOK_BACK = 150.0
"""A process that is there has a row each minute."""
_SAMPLES = f"""SELECT key, gpu_percent, memory_used_bytes, power_milliwatts, temperature_celsius,
    memory_percent, sm_clock_mhz, throttle_reasons, energy_millijoules, {", ".join(LINKS)}, state
FROM raw WHERE key >= ? AND key < ? ORDER BY key"""
_PROCESSES = f"""SELECT key >> {ID_BITS}, uuid, pid, owners.uid, owners.name, commands.text, type,
    memory_bytes, gpu_percent, lease, gone
FROM processes JOIN devices ON devices.id = device JOIN owners ON owners.id = owner
LEFT JOIN commands ON commands.id = command WHERE key >= ? AND key < ? ORDER BY key"""
_LEASES = """SELECT leases.id, owners.uid, owners.name, uuids, mode, memory_bytes, priority, notebook, since,
    seen, until
FROM leases JOIN owners ON owners.id = owner
WHERE since <= ? AND (until IS NULL OR until > ?) ORDER BY since"""
_ROLLUPS = f"""SELECT key >> {ID_BITS}, uuid, milliseconds / 1000.0, gpu_percent, gpu_max, memory_used_bytes,
    memory_max_bytes, power_milliwatts / 1000.0, temperature_max_celsius, energy_millijoules / 1000.0
FROM %s JOIN devices ON devices.id = key & {MAX_ID} WHERE key >= ? AND key < ? ORDER BY key"""


def samples(
    settings: Settings, since: float, until: float | None = None, *, uuids: Collection[str] | None = None
) -> dict[str, list[Sample]]:
    """Each device's raw samples from `since` to `until` (seconds since the epoch), by UUID, oldest first.

    They are kept for a day.
    """
    series: dict[str, list[Sample]] = {}
    with opened(settings) as connection:
        if connection is not None:
            names = {number: uuid for uuid, number in connection.execute("SELECT uuid, id FROM devices")}
            for row in connection.execute(_SAMPLES, (key_of(since), _end(until))):
                uuid = names.get(row[0] & MAX_ID)
                if uuid is not None and (uuids is None or uuid in uuids):
                    series.setdefault(uuid, []).append(_sample(row))
    return series


def recent(settings: Settings, seconds: float, *, until: float | None = None) -> dict[str, list[Sample]]:
    """Each device's samples of the last `seconds`, by UUID, oldest first."""
    now = time.time() if until is None else until
    return samples(settings, now - seconds, now + _FUTURE_SECONDS)


def processes(
    settings: Settings, since: float, until: float | None = None, *, uuid: str | None = None
) -> list[ProcessRow]:
    """What changed about processes in a range, oldest first; before that, who was there as it began."""
    earlier: dict[tuple[str, int], ProcessRow] = {}
    found = []
    with opened(settings) as connection:
        if connection is not None:
            for values in connection.execute(_PROCESSES, (key_of(since - _LOOK_BACK), _end(until))):
                row = _process(values)
                if uuid is not None and row.uuid != uuid:
                    continue
                if row.time >= since:
                    found.append(row)
                else:
                    earlier[row.uuid, row.pid] = row
    return [row for row in earlier.values() if not row.gone] + found


def leases(settings: Settings, since: float, until: float | None = None) -> list[LeaseSpan]:
    """The leases that were held at some time of a range, in the order in which they began."""
    found = []
    with opened(settings) as connection:
        if connection is not None:
            last = time.time() + _FUTURE_SECONDS if until is None else until
            for span in connection.execute(_LEASES, (last, since)):
                found.append(LeaseSpan._make((*span[:3], tuple(json.loads(span[3])), *span[4:])))
    return found


def rollups(
    settings: Settings, since: float, until: float | None = None, *, level: str = "minute"
) -> list[Rollup]:
    """What each device did in each minute (kept for 30 days) or hour (for a year) that begins in a range.

    `level` is "minute" or "hour"; one that has not ended yet is not told.
    """
    found = []
    with opened(settings) as connection:
        if connection is not None:
            last = time.time() + _FUTURE_SECONDS if until is None else until
            query = _ROLLUPS % ("hours" if level == "hour" else "minutes")
            span = (math.ceil(since) << ID_BITS, math.ceil(last) << ID_BITS)
            found = [Rollup(float(start), *values) for start, *values in connection.execute(query, span)]
    return found


def _end(until: float | None) -> int:
    """The first key after the range."""
    return key_of((time.time() + _FUTURE_SECONDS if until is None else until) + 0.001)


def _sample(row: tuple[Any, ...]) -> Sample:
    key, percent, memory, power, celsius, share, clock, reasons, energy, *links, state = row
    power = None if power is None else power / 1000
    energy = None if energy is None else energy / 1000
    told = None if reasons is None else _reasons(reasons)
    state = None if state is None else DEVICE_STATES[state]
    return Sample._make(
        ((key >> ID_BITS) / 1000, percent, memory, power, celsius, share, clock, told, energy, *links, state)
    )


_reasons = functools.lru_cache(64)(reasons_of)


def _process(values: tuple[Any, ...]) -> ProcessRow:
    moment, *owner_and_command, kind, memory, percent, lease, gone = values
    named = (*owner_and_command, ("compute", "graphics")[kind])
    return ProcessRow._make((moment / 1000, *named, memory, percent, lease, bool(gone)))
