"""A snapshot and the leases as the monitor shows them: plain values for the front end, text, and a table.

Pure functions. Nothing is escaped but in `as_html`: the front end puts text in as text.
"""

from __future__ import annotations

import html
import os
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from gpulab.allocation.leases import LeaseRecord
from gpulab.allocation.naming import shown_login
from gpulab.allocation.policy import is_drained
from gpulab.hardware.devices import Device, Snapshot
from gpulab.units import format_bytes, format_duration
from gpulab.widgets.throttling import brake

__all__ = ["as_html", "as_text", "describe_devices", "describe_machine"]

_OLD_SECONDS = 3.5


def describe_machine(snapshot: Snapshot | None, *, mode: str, host: str, trouble: str) -> dict[str, Any]:
    """What holds for the whole machine; `trouble` is shown instead of charts, `notice` above them."""
    notice = ""
    if snapshot is not None and not snapshot.driver.ok:
        sentence = snapshot.driver.message or f"The GPU driver is in state {snapshot.driver.state}."
        trouble, notice = (trouble, sentence) if snapshot.devices else (sentence, "")
    elif snapshot is not None and not snapshot.devices and not trouble:
        trouble = "This machine has no NVIDIA GPU."
    return {
        "mode": mode,
        "state": None if snapshot is None else snapshot.driver.state,
        "host": host,
        "simulated": bool(snapshot and snapshot.simulated),
        "trouble": trouble,
        "notice": notice,
    }


def describe_devices(
    snapshot: Snapshot,
    leases: Sequence[LeaseRecord],
    *,
    own: str | None = None,
    visible: Collection[str] | None = None,
    drained: Collection[str] = (),
    names: str | None = None,
) -> list[dict[str, Any]]:
    """One entry per device, in the snapshot's order.

    `own` is the id of this process's lease; `visible` holds the UUIDs it may see, None for all; `names`
    is the administrator's rule on what others are called.
    Only what changes seldom is in here: figures travel apart.
    """
    parents = {device.parent_uuid for device in snapshot.devices if device.parent_uuid}
    labels = _labels(snapshot.devices)
    entries = []
    for device, label in zip(snapshot.devices, labels, strict=True):
        holders = [lease for lease in leases if device.uuid in lease.gpus]
        mine = next((lease for lease in holders if lease.id == own), None)
        entries.append(
            {
                "key": device.uuid or f"index {label}",
                "label": label,
                "uuid": device.uuid,
                "name": device.name,
                "kind": device.kind,
                "state": device.state,
                "message": device.message,
                "visible": visible is None or device.uuid in visible,
                "mine": mine is not None,
                "share_bytes": None if mine is None else mine.memory_bytes,
                "memory_total_bytes": device.memory.total_bytes,
                "power_limit_watts": device.power_limit_watts,
                "sm_clock_mhz": device.sm_clock_mhz if device.state == "ok" else None,
                "brake": brake(device),
                "use": _use(device, holders, parents, drained),
                "users": _users(device, names),
                "holders": [_holder(lease, own) for lease in holders],
            }
        )
    return entries


def _labels(devices: Iterable[Device]) -> list[str]:
    """The index; MIG slices of GPU 0 are 0.0, 0.1 and so on."""
    labels: list[str] = []
    slices: dict[int, int] = {}
    for device in devices:
        if device.kind == "mig":
            number = slices.setdefault(device.index, 0)
            slices[device.index] += 1
            labels.append(f"{device.index}.{number}")
        else:
            labels.append(str(device.index))
    return labels


def _use(
    device: Device, holders: Sequence[LeaseRecord], parents: Collection[str | None], drained: Collection[str]
) -> str:
    if is_drained(device, tuple(drained)):
        return "drained"
    if holders:
        return "leased"
    if device.uuid in parents:
        return "split"
    if device.processes is None:
        return "unknown"
    if any(process.type == "compute" for process in device.processes):
        return "busy"
    # Another container's process is not listed, but its memory is: such a GPU must not look free
    return "unseen" if device.unlisted_bytes else "free"


def _users(device: Device, names: str | None) -> list[str]:
    computing = (process for process in device.processes or () if process.type == "compute")
    logins = (shown_login(process.user, names) for process in computing)
    return sorted({login for login in logins if login})


def _holder(lease: LeaseRecord, own: str | None) -> dict[str, Any]:
    return {
        "who": lease.who if lease.user or lease.uid is not None else "another user",
        "notebook": os.path.basename(lease.notebook) if lease.notebook else None,
        "since": lease.since or None,
        "idle_since": lease.idle_since,
        "share_bytes": lease.memory_bytes,
        "mine": lease.id == own,
    }


def _cells(device: Device, entry: dict[str, Any]) -> tuple[str, ...]:
    """GPU, name, utilization, memory, power, temperature in words."""
    usable = device.state == "ok"

    def figure(value: float | None, unit: str) -> str:
        return f"{value:.0f} {unit}" if usable and value is not None else "n/a"

    used = device.memory.used_bytes if usable else None
    return (
        f"{'MIG' if device.kind == 'mig' else 'GPU'} {entry['label']}{' (yours)' if entry['mine'] else ''}",
        device.name or "unnamed GPU",
        figure(device.gpu_percent, "%"),
        f"{format_bytes(used)} of {format_bytes(device.memory.total_bytes)}" if used is not None else "n/a",
        figure(device.power_watts, "W"),
        figure(device.temperature_celsius, "°C") if usable else device.message or device.state,
    )


def _shown(snapshot: Snapshot | None, entries: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    if snapshot is None:
        return []
    pairs = zip(snapshot.devices, entries, strict=False)
    return [_cells(device, entry) for device, entry in pairs if entry["visible"]]


def as_text(
    snapshot: Snapshot | None,
    machine: dict[str, Any],
    entries: Sequence[dict[str, Any]],
    *,
    age: float = 0.0,
) -> str:
    """The monitor in words: one line of figures per shown device, or the reason why there is none.

    `age` is that of the snapshot in seconds: figures that are not of now are called so.
    """
    if machine["trouble"]:
        return str(machine["trouble"])
    lines = [
        f"{gpu}, {name}: utilization {busy}, memory {memory}, power {power}, temperature {celsius}"
        for gpu, name, busy, memory, power, celsius in _shown(snapshot, entries)
    ]
    head = ["Simulated GPUs."] if machine["simulated"] else []
    if lines and age > _OLD_SECONDS:
        head.append(f"No new figures for {format_duration(age)}; these are old.")
    return "\n".join([*head, *lines]) if lines else "No GPU figures yet."


def as_html(snapshot: Snapshot | None, machine: dict[str, Any], entries: Sequence[dict[str, Any]]) -> str:
    """The same as a table, for pages where no widget can run."""
    rows = _shown(snapshot, entries)
    if machine["trouble"] or snapshot is None or not rows:
        return f"<p>{html.escape(as_text(snapshot, machine, entries))}</p>"
    when = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(snapshot.time))
    label = ", simulated" if machine["simulated"] else ""
    heads = "".join(f"<th>{x}</th>" for x in ("GPU", "Name", "Utilization", "Memory", "Power", "Temperature"))
    body = "".join("<tr>" + "".join(f"<td>{html.escape(x)}</td>" for x in row) + "</tr>" for row in rows)
    caption = f"GPUs at {html.escape(when)}{label}; live in a running notebook"
    return f"<table><caption>{caption}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
