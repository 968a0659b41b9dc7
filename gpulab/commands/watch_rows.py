"""What `gpulab status --watch` shows of each GPU, in words and numbers, however it is laid out."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from gpulab.allocation.records import LeaseRecord
from gpulab.commands.status import holder
from gpulab.commands.wording import clean
from gpulab.units import format_duration

__all__ = ["GpuRow", "Silence", "gpu_rows", "short_name"]

_IDLE_FROM = 60.0
"""Seconds: a shorter rest is not worth a word."""
_MOST_NAME = 40


class Silence(NamedTuple):
    """Since when a device is not well."""

    since: float
    """Seconds since the epoch."""
    longer: bool
    """It was not well before that already."""


class GpuRow(NamedTuple):
    """One GPU or slice as it is shown; unknown is None."""

    label: str
    name: str
    well: bool
    visible: bool
    """Inside this process's mask."""
    gpu_percent: float | None
    used_bytes: int | None
    total_bytes: int | None
    temperature_celsius: float | None
    power_watts: float | None
    who: tuple[str, ...]
    """A line for each holder; one that says what else is known where there is none."""
    curve: tuple[float | None, ...]
    """Utilization of the last minutes; None is a gap."""


def gpu_rows(
    report: dict[str, Any],
    leases: tuple[LeaseRecord, ...],
    silences: dict[str, Silence],
    curves: dict[str, tuple[float | None, ...]],
) -> list[GpuRow]:
    """From the object of `gpulab status --json` and the leases that went into it.

    `silences`: since when each device that is not well is not, by UUID.
    """
    unknown = report["lease_scope"] is None or report["leases"] is None
    entries = None if unknown else {entry["id"]: entry for entry in report["leases"]}
    idle = {lease.id: lease.idle_since for lease in leases}
    return [
        GpuRow(
            label=_label(device),
            name=short_name(device["name"]),
            well=device["state"] == "ok",
            visible=device["visible"],
            gpu_percent=device["utilization"]["gpu_percent"],
            used_bytes=device["memory"]["used_bytes"],
            total_bytes=device["memory"]["total_bytes"],
            temperature_celsius=device["temperature_celsius"],
            power_watts=device["power_watts"],
            who=_who(device, entries, idle, silences),
            curve=curves.get(device["uuid"], ()),
        )
        for device in report["devices"]
    ]


def short_name(name: str | None) -> str:
    """Without what every name has, or the page says of the whole machine."""
    return clean(name or "n/a", _MOST_NAME).removeprefix("NVIDIA ").removesuffix(" (simulated)")


def _label(device: dict[str, Any]) -> str:
    return str(device["index"]) if device["kind"] == "gpu" else f"{device['index']}·mig"


def _who(
    device: dict[str, Any],
    entries: dict[str, dict[str, Any]] | None,
    idle: dict[str, float | None],
    silences: dict[str, Silence],
) -> tuple[str, ...]:
    if device["state"] != "ok":
        return (_silence(device, silences), *_holders(device, entries, idle))
    return _holders(device, entries, idle) or (clean(holder(device, entries)),)


def _silence(device: dict[str, Any], silences: dict[str, Silence]) -> str:
    found = silences.get(device["uuid"])
    if found is None:
        return str(device["state"])
    seconds = max(1.0, time.time() - found.since)
    clock = time.strftime("%H:%M" if seconds < 86400 else "%Y-%m-%d %H:%M", time.localtime(found.since))
    if found.longer:
        return f"{device['state']} since before {clock}"
    return f"{device['state']} since {clock} ({format_duration(seconds)})"


def _holders(
    device: dict[str, Any], entries: dict[str, dict[str, Any]] | None, idle: dict[str, float | None]
) -> tuple[str, ...]:
    here = [entries[name] for name in device["leases"] or () if entries and name in entries]
    lines = [_holding(entry, device, idle.get(entry["id"])) for entry in here]
    strangers = [p for p in device["processes"] or () if p["type"] == "compute" and p["lease"] is None]
    if lines and strangers:
        many = "1 process" if len(strangers) == 1 else f"{len(strangers)} processes"
        lines.append(f"and {many} without a lease")
    return tuple(lines)


def _holding(entry: dict[str, Any], device: dict[str, Any], idle_since: float | None) -> str:
    """Who, how much of it, the notebook, and since when nothing happens."""
    words = [clean(entry["user"] or f"uid {entry['uid']}", _MOST_NAME), _share(entry, device)]
    if entry["notebook"]:
        words.append(clean(entry["notebook"].rpartition("/")[2], _MOST_NAME))
    elif entry["pid"]:
        words.append(f"({entry['pid']})")
    seconds = 0.0 if idle_since is None else time.time() - idle_since
    if seconds >= _IDLE_FROM or entry["state"] != "active":
        told = f" {format_duration(seconds)}" if seconds >= _IDLE_FROM else ""
        words.append(f"{'idle' if entry['state'] == 'active' else entry['state']}{told}")
    return " ".join(words)


def _share(entry: dict[str, Any], device: dict[str, Any]) -> str:
    """What its processes take of its share, where the driver tells it."""
    if entry["mode"] != "shared":
        return "whole"
    share = entry["memory_bytes"] / 2**30
    taken = [p["memory_bytes"] for p in device["processes"] or () if p["lease"] == entry["id"]]
    if not taken or None in taken:
        return f"{share:.0f} GiB" if share >= 10 else f"{share:.1f} GiB"
    used = sum(taken) / 2**30
    return f"{used:.1f}/{share:.0f} GiB"
