"""The history as rows: one for each device and sample, or each minute or hour where only those are left."""

# ruff: noqa: S608 - the query is put together from our own constants

from __future__ import annotations

import math
import sqlite3
from collections.abc import Collection, Iterator
from typing import NamedTuple

from gpulab.config import Settings
from gpulab.errors import RequestError
from gpulab.hardware.record import latest
from gpulab.telemetry import series
from gpulab.telemetry.reading.file import opened
from gpulab.telemetry.series import Rollup, Sample
from gpulab.telemetry.storing.rollups import PERIODS, intervals, longest_period
from gpulab.telemetry.storing.schema import HOUR, ID_BITS, MINUTE, key_of

__all__ = ["RESOLUTIONS", "Known", "Row", "Segment", "known_devices", "plan", "rows", "rows_of"]

RESOLUTIONS = ("raw", "minute", "hour")
_LENGTHS = {"minute": MINUTE, "hour": HOUR}
_RAW_AT_MOST = 24 * 3600.0 + 1
_MINUTES_AT_MOST = 30 * 86400.0 + 1
_CHUNK_SECONDS = 1800.0
"""Raw rows are read by the half hour, so that a day of many GPUs never lies in memory at once."""


class Row(NamedTuple):
    """One device over the time that a row stands for; unknown is None."""

    time: float
    """Seconds since the epoch: of the sample, or the beginning of the minute or hour."""
    uuid: str
    name: str | None
    index: int | None  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a row
    """As the driver last numbered the devices."""
    resolution: str
    """raw, minute or hour"""
    seconds: float | None
    """The time that the row stands for: since the sample before, or how much of the minute or hour was
    sampled. None for a sample after a gap."""
    gpu_percent: float | None
    gpu_max_percent: float | None
    memory_used_bytes: float | None
    memory_max_bytes: int | None
    memory_percent: float | None
    power_watts: float | None
    temperature_celsius: float | None
    """Of a minute or an hour the highest."""
    energy_joules: float | None
    """Taken in that time."""
    sm_clock_mhz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    pcie_rx_bytes_per_second: float | None = None
    pcie_tx_bytes_per_second: float | None = None
    nvlink_rx_bytes_per_second: float | None = None
    nvlink_tx_bytes_per_second: float | None = None
    state: str | None = None
    """ok, lost, error or unresponsive; None where it was not told."""


class Segment(NamedTuple):
    """A part of a range, to be read in one resolution."""

    level: str
    """raw, minute or hour"""
    since: float
    until: float
    """Seconds since the epoch, as `since`."""


class Known(NamedTuple):
    """What is known of a device besides its samples."""

    name: str | None = None
    index: int | None = None  # type: ignore[assignment]  # hides tuple.index


def rows(
    settings: Settings,
    since: float,
    until: float,
    *,
    resolution: str = "auto",
    uuids: Collection[str] | None = None,
) -> Iterator[Row]:
    """The rows from `since` to `until` (seconds since the epoch) by time; none without a history.

    Raises RequestError at once for a resolution that does not exist.
    """
    segments = plan(settings, since, until, resolution)
    devices = known_devices(settings)
    found = (row for segment in segments for row in rows_of(settings, segment, devices))
    return (row for row in found if uuids is None or row.uuid in uuids)


def rows_of(settings: Settings, segment: Segment, devices: dict[str, Known]) -> Iterator[Row]:
    """The rows of a part of a range, all of one resolution."""
    if segment.level == "raw":
        yield from _raw(settings, segment.since, segment.until, devices)
    else:
        for rollup in series.rollups(settings, segment.since, segment.until, level=segment.level):
            yield _rolled(rollup, segment.level, devices.get(rollup.uuid, Known()))


def known_devices(settings: Settings) -> dict[str, Known]:
    """The devices that the history or the newest snapshot names, by UUID."""
    known: dict[str, Known] = {}
    with opened(settings) as connection:
        if connection is not None:
            known = {
                uuid: Known(name)
                for uuid, name in connection.execute("SELECT uuid, name FROM devices ORDER BY id")
            }
    newest = latest(settings)
    for device in () if newest is None else newest.devices:
        if device.uuid is not None:
            before = known.get(device.uuid, Known())
            known[device.uuid] = Known(device.name or before.name, device.index)
    return known


def plan(settings: Settings, since: float, until: float, resolution: str = "auto") -> list[Segment]:
    """What to read for a range: rows fit for its length, coarser before and finer after where there are none.

    Raises RequestError for a resolution that does not exist.
    """
    if resolution in RESOLUTIONS:
        return [Segment(resolution, since, until)]
    if resolution != "auto":
        raise RequestError(f"There is no resolution {resolution!r}; choose auto, {', '.join(RESOLUTIONS)}.")
    length = until - since
    place = 0 if length <= _RAW_AT_MOST else 1 if length <= _MINUTES_AT_MOST else 2
    with opened(settings) as connection:
        if connection is not None:
            first = _edge(connection, "min", place, since, until)
            older = _older(connection, place + 1, since, until if first is None else first)
            return older + _newer(connection, place, older[-1].until if older else since, until)
    return []


def _older(connection: sqlite3.Connection, place: int, since: float, until: float) -> list[Segment]:
    """Where the finer rows are gone already: whole minutes or hours before those begin."""
    if place >= len(RESOLUTIONS):
        return []
    length = _LENGTHS[RESOLUTIONS[place]]
    last = until // length * length
    first = _edge(connection, "min", place, since, last)
    if first is None or last <= since:
        return _older(connection, place + 1, since, until)
    return [
        *_older(connection, place + 1, since, first),
        Segment(RESOLUTIONS[place], first, last),
    ]


def _newer(connection: sqlite3.Connection, place: int, since: float, until: float) -> list[Segment]:
    """And after them, the newest time, which is not rolled up yet."""
    if since >= until:
        return []
    if place == 0:
        return [Segment("raw", since, until)]
    newest = _edge(connection, "max", place, since, until)
    if newest is None:
        return _newer(connection, place - 1, since, until)
    level = RESOLUTIONS[place]
    segment = Segment(level, since, newest + _LENGTHS[level])
    return [segment, *_newer(connection, place - 1, segment.until, until)]


def _edge(connection: sqlite3.Connection, which: str, place: int, since: float, until: float) -> float | None:
    """When the first or the last row (min, max) of a resolution begins in a range."""
    table = ("raw", "minutes", "hours")[place]
    if table == "raw":
        span = (key_of(since), key_of(until))
    else:
        span = (math.ceil(since) << ID_BITS, math.ceil(until) << ID_BITS)
    query = f"SELECT {which}(key) >> {ID_BITS} FROM {table} WHERE key >= ? AND key < ?"
    found = connection.execute(query, span).fetchone()[0]
    return None if found is None else found / 1000 if table == "raw" else float(found)


def _raw(settings: Settings, since: float, until: float, devices: dict[str, Known]) -> Iterator[Row]:
    begin = since
    while begin <= until:
        end = min(begin + _CHUNK_SECONDS, until + 0.001)
        parts = _parts(settings, begin, end)
        found = series.samples(settings, begin, end - 0.001)  # less its last instant, which is the next one's
        sampled = [(sample.time, uuid, sample) for uuid, samples in found.items() for sample in samples]
        for moment, uuid, sample in sorted(sampled):
            seconds, energy = parts.get((uuid, round(moment * 1000)), (None, None))
            yield _sampled(sample, uuid, devices.get(uuid, Known()), seconds, energy)
        begin = end


def _parts(
    settings: Settings, since: float, until: float
) -> dict[tuple[str, int], tuple[float | None, float | None]]:
    """The seconds that each sample stands for and the joules taken in them, by UUID and millisecond."""
    with opened(settings) as connection:
        if connection is None:
            return {}
        names = dict(connection.execute("SELECT id, uuid FROM devices"))
        reach = PERIODS * longest_period(connection)
        return {
            (names[part.device], part.start + part.milliseconds): (
                part.milliseconds / 1000,
                None if part.energy_millijoules is None else part.energy_millijoules / 1000,
            )
            for part in intervals(connection, since - reach, until)
            if part.device in names
        }
    return {}


def _sampled(sample: Sample, uuid: str, device: Known, seconds: float | None, energy: float | None) -> Row:
    return Row(
        time=sample.time,
        uuid=uuid,
        name=device.name,
        index=device.index,
        resolution="raw",
        seconds=seconds,
        gpu_percent=sample.gpu_percent,
        gpu_max_percent=sample.gpu_percent,
        memory_used_bytes=sample.memory_used_bytes,
        memory_max_bytes=sample.memory_used_bytes,
        memory_percent=sample.memory_percent,
        power_watts=sample.power_watts,
        temperature_celsius=sample.temperature_celsius,
        energy_joules=energy,
        sm_clock_mhz=sample.sm_clock_mhz,
        throttle_reasons=sample.throttle_reasons,
        pcie_rx_bytes_per_second=sample.pcie_rx_bytes_per_second,
        pcie_tx_bytes_per_second=sample.pcie_tx_bytes_per_second,
        nvlink_rx_bytes_per_second=sample.nvlink_rx_bytes_per_second,
        nvlink_tx_bytes_per_second=sample.nvlink_tx_bytes_per_second,
        state=sample.state,
    )


def _rolled(rollup: Rollup, level: str, device: Known) -> Row:
    return Row(
        time=rollup.time,
        uuid=rollup.uuid,
        name=device.name,
        index=device.index,
        resolution=level,
        seconds=rollup.seconds,
        gpu_percent=rollup.gpu_percent,
        gpu_max_percent=rollup.gpu_max,
        memory_used_bytes=rollup.memory_used_bytes,
        memory_max_bytes=rollup.memory_max_bytes,
        memory_percent=None,
        power_watts=rollup.power_watts,
        temperature_celsius=rollup.temperature_max_celsius,
        energy_joules=rollup.energy_joules,
    )
