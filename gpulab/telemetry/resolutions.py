"""The history as rows: one for each device and sample, or each minute or hour where only those are left."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import NamedTuple

from gpulab.config import Settings
from gpulab.errors import RequestError
from gpulab.hardware.record import latest
from gpulab.telemetry import series
from gpulab.telemetry.reading import opened
from gpulab.telemetry.rollups import PERIODS, intervals, longest_period
from gpulab.telemetry.schema import HOUR, MINUTE
from gpulab.telemetry.series import Rollup, Sample

__all__ = ["RESOLUTIONS", "Known", "Row", "known_devices", "rows"]

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
    if resolution != "auto" and resolution not in RESOLUTIONS:
        raise RequestError(f"There is no resolution {resolution!r}; choose auto, {', '.join(RESOLUTIONS)}.")
    devices = known_devices(settings)
    found = (
        _fitting(settings, since, until, devices)
        if resolution == "auto"
        else _level(settings, resolution, since, until, devices)
    )
    return (row for row in found if uuids is None or row.uuid in uuids)


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


def _fitting(settings: Settings, since: float, until: float, devices: dict[str, Known]) -> Iterator[Row]:
    """Rows fit for the length of the range, coarser before and finer after where there are none."""
    length = until - since
    place = 0 if length <= _RAW_AT_MOST else 1 if length <= _MINUTES_AT_MOST else 2
    found = _level(settings, RESOLUTIONS[place], since, until, devices)
    first = next(found, None)
    begun = until if first is None else first.time
    yield from _coarser(settings, since, begun, place + 1, devices)
    end = begun
    for row in itertools.chain([] if first is None else [first], found):
        yield row
        end = row.time
    if place and first is not None:
        yield from _finer(settings, end + _LENGTHS[RESOLUTIONS[place]], until, place - 1, devices)


def _coarser(
    settings: Settings, since: float, until: float, place: int, devices: dict[str, Known]
) -> Iterator[Row]:
    """Where the finer rows are gone already."""
    if place >= len(RESOLUTIONS):
        return
    last = until // _LENGTHS[RESOLUTIONS[place]] * _LENGTHS[RESOLUTIONS[place]]
    if last > since:
        found = list(_level(settings, RESOLUTIONS[place], since, last - 0.001, devices))
        yield from _coarser(settings, since, found[0].time if found else last, place + 1, devices)
        yield from found


def _finer(
    settings: Settings, since: float, until: float, place: int, devices: dict[str, Known]
) -> Iterator[Row]:
    """The newest time, which is not rolled up yet."""
    if since >= until:
        return
    end = None
    for row in _level(settings, RESOLUTIONS[place], since, until, devices):
        yield row
        end = row.time
    if place:
        rolled = since if end is None else end + _LENGTHS[RESOLUTIONS[place]]
        yield from _finer(settings, rolled, until, place - 1, devices)


def _level(
    settings: Settings, level: str, since: float, until: float, devices: dict[str, Known]
) -> Iterator[Row]:
    if level == "raw":
        yield from _raw(settings, since, until, devices)
    else:
        for rollup in series.rollups(settings, since, until, level=level):
            yield _rolled(rollup, level, devices.get(rollup.uuid, Known()))


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
