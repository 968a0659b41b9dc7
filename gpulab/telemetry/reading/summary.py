"""Who held and used what in a range, what each device did, and how much of the range was sampled at all."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from gpulab.config import Settings, host_name
from gpulab.hardware.record import latest
from gpulab.telemetry import series
from gpulab.telemetry.reading.pieces import pieces
from gpulab.telemetry.reading.resolutions import Known, known_devices
from gpulab.telemetry.series import Rollup

__all__ = ["DeviceSummary", "Summary", "UserSummary", "known_sum", "of_this_host"]


class DeviceSummary(NamedTuple):
    """One device over the range; None where nothing is known."""

    host: str
    uuid: str
    name: str | None
    index: int | None  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a summary
    sampled_seconds: float
    """How much of the range samples tell of; the figures below are of that time alone."""
    gpu_percent: float | None
    gpu_max_percent: float | None
    memory_max_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None
    temperature_max_celsius: float | None
    energy_joules: float | None
    held_seconds: float | None
    """How long at least one lease named it."""


class UserSummary(NamedTuple):
    """One account over the range, all devices of a host together; None where nothing could be known."""

    host: str
    uid: int | None
    """None: use that no lease and no visible process accounts for, or another host's account."""
    user: str | None
    """The login as the history has it; whoever shows it applies the rule `names`."""
    devices: int
    """How many it held or used."""
    held_seconds: float
    used_seconds: float | None
    idle_seconds: float | None
    energy_joules: float | None


class Summary(NamedTuple):
    """A range of time, summed up."""

    since: float
    until: float
    """Seconds since the epoch, as `since`."""
    hosts: tuple[str, ...]
    sampled_seconds: float
    """How much of the range was sampled: of the device that was sampled most."""
    devices: tuple[DeviceSummary, ...]
    users: tuple[UserSummary, ...]
    """Whoever held most comes first."""
    simulated: bool = False

    @property
    def coverage(self) -> float:
        """The part of the range that was sampled, from 0 to 1."""
        return min(1.0, self.sampled_seconds / (self.until - self.since))


def of_this_host(
    settings: Settings, since: float, until: float, *, uuids: Collection[str] | None = None
) -> Summary:
    """From this machine's own history, which may have nothing. Never raises."""
    parts: dict[str, list[Rollup]] = {}
    for part in pieces(settings, since, until):
        parts.setdefault(part.uuid, []).append(part)
    leased = _leased(settings, since, until)
    known = known_devices(settings)
    sizes = _sizes(settings)
    devices = [
        _device(uuid, known.get(uuid, Known()), parts.get(uuid, ()), sizes.get(uuid), leased.get(uuid, 0.0))
        for uuid in (*known, *sorted({*parts, *leased} - known.keys()))
        if (uuid in parts or uuid in leased) and (uuids is None or uuid in uuids)
    ]
    return Summary(
        since=since,
        until=until,
        hosts=(host_name(),),
        sampled_seconds=max((device.sampled_seconds for device in devices), default=0.0),
        devices=tuple(sorted(devices, key=_place)),
        users=_users(settings, since, until, uuids),
        simulated=settings.simulate is not None,
    )


def known_sum(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _place(device: DeviceSummary) -> float:
    return math.inf if device.index is None else device.index


def _users(
    settings: Settings, since: float, until: float, uuids: Collection[str] | None
) -> tuple[UserSummary, ...]:
    found: dict[int | None, list[series.Usage]] = {}
    for entry in series.usage(settings, since, until):
        if uuids is None or entry.uuid in uuids:
            found.setdefault(entry.uid, []).append(entry)
    users = [_user(uid, entries) for uid, entries in found.items()]
    return tuple(sorted(users, key=lambda user: (-user.held_seconds, -(user.used_seconds or 0))))


def _user(uid: int | None, entries: list[series.Usage]) -> UserSummary:
    return UserSummary(
        host=host_name(),
        uid=uid,
        user=entries[0].user,
        devices=sum(entry.held_seconds > 0 or bool(entry.used_seconds) for entry in entries),
        held_seconds=sum(entry.held_seconds for entry in entries),
        used_seconds=known_sum(entry.used_seconds for entry in entries),
        idle_seconds=known_sum(entry.idle_seconds for entry in entries),
        energy_joules=known_sum(entry.energy_joules for entry in entries),
    )


def _device(
    uuid: str, known: Known, parts: Collection[Rollup], size: int | None, held: float
) -> DeviceSummary:
    return DeviceSummary(
        host=host_name(),
        uuid=uuid,
        name=known.name,
        index=known.index,
        sampled_seconds=sum(part.seconds for part in parts),
        gpu_percent=_mean((part.gpu_percent, part.seconds) for part in parts),
        gpu_max_percent=max((p.gpu_max for p in parts if p.gpu_max is not None), default=None),
        memory_max_bytes=max(
            (p.memory_max_bytes for p in parts if p.memory_max_bytes is not None), default=None
        ),
        memory_total_bytes=size,
        power_watts=_mean((part.power_watts, part.seconds) for part in parts),
        temperature_max_celsius=max(
            (p.temperature_max_celsius for p in parts if p.temperature_max_celsius is not None), default=None
        ),
        energy_joules=known_sum(part.energy_joules for part in parts),
        held_seconds=held,
    )


def _mean(weighted: Iterable[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in weighted if value is not None and weight > 0]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def _sizes(settings: Settings) -> dict[str, int]:
    newest = latest(settings)
    devices = () if newest is None else newest.devices
    return {
        d.uuid: d.memory.total_bytes
        for d in devices
        if d.uuid is not None and d.memory.total_bytes is not None
    }


def _leased(settings: Settings, since: float, until: float) -> dict[str, float]:
    """By device: how long at least one lease named it."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for lease in series.leases(settings, since, until):
        start, end = max(lease.since, since), min(lease.seen if lease.until is None else lease.until, until)
        for uuid in lease.uuids if end > start else ():
            spans.setdefault(uuid, []).append((start, end))
    held = {}
    for uuid, found in spans.items():
        total, reached = 0.0, since
        for start, end in sorted(found):
            total += max(0.0, end - max(start, reached))
            reached = max(reached, end)
        held[uuid] = total
    return held
