"""The same summary of all hosts, as the Prometheus that scrapes them tells it.

Prometheus sums up, so that a month of many hosts is a few lines of answer. Several holders of a device
share its use in equal parts, because processes are not exported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from gpulab.allocation.naming import HIDDEN
from gpulab.telemetry import prometheus
from gpulab.telemetry.reading.summary import DeviceSummary, Summary, UserSummary

__all__ = ["of_all_hosts"]

_HOLDERS = "(count by (host, uuid, user) (gpulab_device_leases > 0) > bool 0)"
"""1 for each holder of a device, however many leases of it are its own."""
_MANY = f"(count by (host, uuid) ({_HOLDERS}))"
_RATIO = "avg by (host, uuid) (gpulab_device_utilization_ratio)"
_POWER = "avg by (host, uuid) (gpulab_device_power_watts)"
_STEPS = 10_000
_LEAST_STEP = 1.0
_COVERS = 120.0
"""Seconds in which even a slow Prometheus has scraped once."""
_DEVICE = "host, uuid, name, gpu"


class _Span(NamedTuple):
    """Seconds: of the range, and between the instants at which Prometheus looks."""

    length: float
    step: float

    @property
    def window(self) -> str:
        return f"{self.length * 1000:.0f}ms"

    @property
    def steps(self) -> str:
        return f"{self.window}:{self.step * 1000:.0f}ms"


Answers = dict[tuple[str, ...], float]


def of_all_hosts(url: str, since: float, until: float) -> Summary:
    """What all hosts did from `since` to `until`, in seconds since the epoch.

    Raises RequestError for an address that makes no sense, PrometheusError if it does not answer.
    """
    span = _Span(until - since, max(_LEAST_STEP, (until - since) / _STEPS))

    def ask(query: str, *labels: str) -> Answers:
        found: Answers = {}
        for line in prometheus.read_range(url, query, until, until, 1.0, timeout=60.0):
            if line.values and line.values[-1] is not None:
                found[tuple(line.labels.get(label, "") for label in labels)] = line.values[-1]
        return found

    alive = f"max by (host) (max_over_time(gpulab_up[{_COVERS * 1000:.0f}ms])) > 0"
    sampled = {
        host: count * span.step
        for (host,), count in ask(f"count_over_time(({alive})[{span.steps}])", "host").items()
    }
    simulated = ask(f"max by (host) (max_over_time(gpulab_simulated[{span.window}]))", "host")
    devices = _devices(ask, span, sampled)
    users = _users(ask, span)
    hosts = tuple(sorted({*sampled, *(device.host for device in devices)}))
    covered = max(sampled.values(), default=0.0)
    return Summary(since, until, hosts, min(covered, until - since), devices, users, any(simulated.values()))


def _devices(
    ask: Callable[..., Answers], span: _Span, sampled: dict[str, float]
) -> tuple[DeviceSummary, ...]:
    def over(how: str, metric: str) -> Answers:
        inner = f"{how}_over_time(gpulab_device_{metric}[{span.window}])"
        return ask(f"{how} by ({_DEVICE}) ({inner})", "host", "uuid", "name", "gpu")

    busy, most = over("avg", "utilization_ratio"), over("max", "utilization_ratio")
    peak, size = over("max", "memory_used_bytes"), over("max", "memory_size_bytes")
    power, celsius = over("avg", "power_watts"), over("max", "temperature_celsius")
    joules = ask(
        f"max by ({_DEVICE}) (increase(gpulab_device_energy_joules_total[{span.window}]))",
        "host",
        "uuid",
        "name",
        "gpu",
    )
    held = ask(f"count_over_time(({_MANY})[{span.steps}])", "host", "uuid")
    found = [
        DeviceSummary(
            host=key[0],
            uuid=key[1],
            name=key[2] or None,
            index=int(key[3]) if key[3].isdecimal() else None,
            sampled_seconds=min(span.length, sampled.get(key[0], 0.0)),
            gpu_percent=_times(busy.get(key), 100.0),
            gpu_max_percent=_times(most.get(key), 100.0),
            memory_max_bytes=_whole(peak.get(key)),
            memory_total_bytes=_whole(size.get(key)),
            power_watts=power.get(key),
            temperature_max_celsius=celsius.get(key),
            energy_joules=joules.get(key),
            held_seconds=min(span.length, held.get((key[0], key[1]), 0.0) * span.step),
        )
        for key in {*busy, *peak, *power}
    ]
    return tuple(sorted(found, key=lambda d: (d.host, math.inf if d.index is None else d.index, d.uuid)))


def _users(ask: Callable[..., Answers], span: _Span) -> tuple[UserSummary, ...]:
    """At each step whoever holds a device, with the device's figures at that step, in equal parts."""

    def summed(inner: str) -> Answers:
        return ask(f"sum by (host, user) (sum_over_time(({inner})[{span.steps}]))", "host", "user")

    each = f"{_HOLDERS} * on (host, uuid) group_left ()"
    held, used = summed(_HOLDERS), summed(f"{each} ({_RATIO} / {_MANY})")
    idle = summed(f"{each} ({_RATIO} == bool 0)")
    energy = summed(f"{each} ({_POWER} / {_MANY})")
    devices = ask(
        f"count by (host, user) (count by (host, uuid, user) (count_over_time(({_HOLDERS})[{span.steps}])))",
        "host",
        "user",
    )
    found = [
        UserSummary(
            host=key[0],
            uid=None,
            user=key[1] or HIDDEN,
            devices=round(devices.get(key, 0)),
            held_seconds=steps_held * span.step,
            used_seconds=_times(used.get(key), span.step),
            idle_seconds=_times(idle.get(key), span.step),
            energy_joules=_times(energy.get(key), span.step),
        )
        for key, steps_held in held.items()
    ]
    return tuple(sorted(found, key=lambda user: -user.held_seconds))


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
