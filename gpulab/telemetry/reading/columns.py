"""Raw samples column by column, for a DataFrame: a day of many GPUs would take long row by row.

The figures are those of `resolutions.rows`, and a test holds them equal.
"""

# ruff: noqa: S608 - the query is put together from our own constants

from __future__ import annotations

from array import array
from typing import Any

from gpulab.config import Settings
from gpulab.hardware.devices import DEVICE_STATES, LINKS
from gpulab.hardware.throttling import reasons_of
from gpulab.telemetry.reading.file import opened
from gpulab.telemetry.reading.resolutions import Known, Row, Segment
from gpulab.telemetry.storing.rollups import MOST_WATTS, PERIODS, longest_period
from gpulab.telemetry.storing.schema import ID_BITS, MAX_ID, key_of

__all__ = ["raw_columns"]

_NAMES = (
    "gpu_percent",
    "memory_used_bytes",
    "memory_percent",
    "power_milliwatts",
    "temperature_celsius",
    "sm_clock_mhz",
    *LINKS,
    "energy_millijoules",
    "period",
    "throttle_reasons",
    "state",
)
_QUERY = f"SELECT key, {', '.join(_NAMES)} FROM raw WHERE key >= ? AND key < ? ORDER BY key"
_BATCH = 16384
_NAN = float("nan")


def raw_columns(settings: Settings, segment: Segment, devices: dict[str, Known]) -> dict[str, Any]:
    """The columns of `Row` as NumPy arrays, "time" in milliseconds; sorted by time, then UUID."""
    import numpy as np

    keys, read, uuids = _read(settings, segment)
    key = np.frombuffer(keys, dtype="int64") if keys else np.zeros(0, dtype="int64")
    told = {name: np.frombuffer(values) if values else np.zeros(0) for name, values in read.items()}
    numbers, moments = key & MAX_ID, key >> ID_BITS
    seconds, joules = _stood_for(numbers, moments, told)
    rank = {uuid: place for place, uuid in enumerate(sorted(uuids.values()))}
    order = np.array([rank.get(uuids.get(number, ""), -1) for number in range(MAX_ID + 1)])[numbers]
    kept = np.nonzero((key >= key_of(segment.since)) & (order >= 0))[0]
    kept = kept[np.lexsort((order[kept], moments[kept]))]

    def named(value_of: Any) -> Any:
        table = np.array([value_of(uuids.get(number)) for number in range(MAX_ID + 1)], dtype=object)
        return table[numbers[kept]]

    columns: dict[str, Any] = dict.fromkeys(Row._fields)
    columns.update({name: told[name][kept] for name in _NAMES if name in Row._fields})
    columns.update(
        time=moments[kept],
        uuid=named(lambda uuid: uuid),
        name=named(lambda uuid: devices.get(uuid, Known()).name),
        index=named(lambda uuid: devices.get(uuid, Known()).index),
        resolution=np.full(len(kept), "raw", dtype=object),
        seconds=seconds[kept],
        gpu_max_percent=told["gpu_percent"][kept],
        memory_max_bytes=told["memory_used_bytes"][kept],
        power_watts=told["power_milliwatts"][kept] / 1000,
        energy_joules=joules[kept],
        throttle_reasons=_texts(told["throttle_reasons"][kept], lambda bits: " ".join(reasons_of(bits))),
        state=_texts(told["state"][kept], dict(enumerate(DEVICE_STATES)).get),
    )
    return columns


def _read(settings: Settings, segment: Segment) -> tuple[array[int], dict[str, array[float]], dict[int, str]]:
    keys: array[int] = array("q")
    columns: dict[str, array[float]] = {name: array("d") for name in _NAMES}
    with opened(settings) as connection:
        if connection is not None:
            uuids = dict(connection.execute("SELECT id, uuid FROM devices"))
            reach = PERIODS * longest_period(connection)
            cursor = connection.execute(
                _QUERY, (key_of(segment.since - reach), key_of(segment.until + 0.001))
            )
            while batch := cursor.fetchmany(_BATCH):
                first, *rest = zip(*batch, strict=True)
                keys.extend(first)
                for column, values in zip(columns.values(), rest, strict=True):
                    column.extend([_NAN if value is None else value for value in values])
            return keys, columns, uuids
    return keys, columns, {}


def _stood_for(numbers: Any, moments: Any, told: dict[str, Any]) -> tuple[Any, Any]:
    """The seconds since each device's sample before, and the joules in them; as `rollups.intervals`."""
    import numpy as np

    seconds, joules = np.full(len(numbers), _NAN), np.full(len(numbers), _NAN)
    for number in np.unique(numbers):
        here = np.nonzero(numbers == number)[0]
        length = np.diff(moments[here])
        period = np.nan_to_num(told["period"][here][1:])
        whole = length <= PERIODS * 1000 * np.where(period == 0, 1, period)
        counted = np.diff(told["energy_millijoules"][here])
        power = told["power_milliwatts"][here]
        believed = (counted >= 0) & (counted <= MOST_WATTS * length)
        energy = np.where(believed, counted, (power[1:] + power[:-1]) / 2 * length / 1000)
        seconds[here[1:]] = np.where(whole, length / 1000, _NAN)
        joules[here[1:]] = np.where(whole, energy / 1000, _NAN)
    return seconds, joules


def _texts(values: Any, text_of: Any) -> Any:
    """Few different numbers, each with its text; unknown is None."""
    import numpy as np

    known = {number: text_of(int(number)) for number in np.unique(values) if not np.isnan(number)}
    return np.array([known.get(number) for number in values.tolist()], dtype=object)
