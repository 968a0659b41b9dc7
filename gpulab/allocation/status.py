"""Who has what: a snapshot and the leases, joined into `gpulab.status/1`."""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from typing import Any

from gpulab.allocation.directory import find
from gpulab.allocation.leases import LeaseRecord
from gpulab.config import Settings, host_name
from gpulab.errors import GpulabError
from gpulab.hardware.devices import Device, Process, Snapshot
from gpulab.hardware.mask import visible_uuids

__all__ = ["lease_entry", "leases_report", "status"]

_MAX_ANCESTORS = 64


def status(snapshot: Snapshot, leases: tuple[LeaseRecord, ...], settings: Settings) -> dict[str, Any]:
    """The object that `gpulab status --json` prints; null where unknown, times ISO 8601 UTC."""
    report = snapshot.to_dict()
    visible = _visible(snapshot, settings)
    scope, path = _where(settings)
    return {
        "schema": "gpulab.status/1",
        "host": host_name(),
        **report,
        "time": _iso(snapshot.time),
        "lease_scope": scope,
        "lease_dir": path,
        "devices": [_device_entry(device, leases, visible, settings) for device in snapshot.devices],
        "leases": [lease_entry(lease, settings) for lease in leases],
        "waiting": [],
    }


def leases_report(leases: tuple[LeaseRecord, ...], settings: Settings) -> dict[str, Any]:
    """The object that `gpulab leases --json` prints."""
    return {
        "schema": "gpulab.leases/1",
        "leases": [lease_entry(lease, settings) for lease in leases],
        "waiting": [],
    }


def lease_entry(lease: LeaseRecord, settings: Settings) -> dict[str, Any]:
    """One lease as programs read it; the pid is of a process that keeps it alive, if we may see one."""
    return {
        "id": lease.id,
        "state": lease.state,
        "gpus": list(lease.gpus),
        "mode": lease.mode,
        "memory_bytes": lease.memory_bytes,
        "priority": lease.priority,
        "user": lease.user,
        "uid": lease.uid,
        "pid": _keeper(lease, settings),
        "kernel_id": lease.kernel_id,
        "notebook": lease.notebook,
        "since": _iso(lease.since),
        "container": lease.container,
    }


def _device_entry(
    device: Device, leases: tuple[LeaseRecord, ...], visible: frozenset[str] | None, settings: Settings
) -> dict[str, Any]:
    entry = device.to_dict()
    holders = [lease for lease in leases if device.uuid in lease.gpus]
    entry["sampled_at"] = _iso(device.sampled_at)
    entry["drained"] = device.uuid in settings.drained
    entry["visible"] = visible is None or device.uuid in visible
    entry["leases"] = [lease.id for lease in holders]
    if device.processes is not None:
        entry["processes"] = [
            {**process._asdict(), "lease": _lease_of(process, holders)} for process in device.processes
        ]
    return entry


def _visible(snapshot: Snapshot, settings: Settings) -> frozenset[str] | None:
    try:
        return visible_uuids(snapshot.devices, settings.visible_devices, settings.device_order)
    except GpulabError:
        return frozenset()  # a mask that nobody can read shows CUDA nothing that we could name


def _where(settings: Settings) -> tuple[str | None, str | None]:
    try:
        directory = find(settings)
    except GpulabError:
        return None, settings.lease_dir
    return directory.scope, directory.path


def _iso(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _lease_of(process: Process, holders: list[LeaseRecord]) -> str | None:
    """The lease whose holder is this process or an ancestor of it."""
    holding = {lease.pid: lease.id for lease in holders if lease.pid is not None}
    pid = process.pid
    for _ in range(_MAX_ANCESTORS):
        if pid in holding or pid <= 1:
            break
        pid = _parent(pid)
    return holding.get(pid)


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _keeper(lease: LeaseRecord, settings: Settings) -> int | None:
    """The holder, or once it is gone the descendant that inherited the lease and keeps it alive."""
    if lease.pid is None or lease.uid != os.getuid() or os.path.exists(f"/proc/{lease.pid}"):
        return lease.pid
    with contextlib.suppress(GpulabError, OSError):
        target = os.stat(os.path.join(find(settings).path, f"lease-{lease.id}"))
        for name in os.listdir("/proc"):
            if name.isdecimal() and int(name) != os.getpid() and _has_open(name, target):
                return int(name)
    return lease.pid


def _has_open(pid: str, target: os.stat_result) -> bool:
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(entry.path), target):
                    return True
    return False
