"""Who has what: a snapshot and the leases, joined into `gpulab.status/1`."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import Any

from gpulab.allocation.directory import find
from gpulab.allocation.holders import keeper, lease_of
from gpulab.allocation.naming import HIDDEN, shown_login
from gpulab.allocation.policy import is_drained
from gpulab.allocation.records import LeaseRecord
from gpulab.allocation.tickets import waiting_now
from gpulab.config import Settings, host_name
from gpulab.errors import GpulabError
from gpulab.hardware.devices import Device, Snapshot, unlisted_bytes
from gpulab.hardware.mask import visible_uuids

__all__ = ["holding_state", "lease_entry", "leases_report", "status", "unlisted", "waiting_entry"]


def status(snapshot: Snapshot, leases: tuple[LeaseRecord, ...], settings: Settings) -> dict[str, Any]:
    """The object that `gpulab status --json` prints; null where unknown, times ISO 8601 UTC.

    Where the lease directory cannot be used nobody knows who holds what: `leases` is null, not empty.
    """
    report = snapshot.to_dict()
    visible = _visible(snapshot, settings)
    scope, path = _where(settings)
    known = None if scope is None else leases
    return {
        "schema": "gpulab.status/1",
        "host": host_name(),
        **report,
        "time": _iso(snapshot.time),
        "lease_scope": scope,
        "lease_dir": path,
        "devices": [_device_entry(device, known, visible, settings) for device in snapshot.devices],
        "leases": None if known is None else [lease_entry(lease, settings) for lease in known],
        "waiting": None if known is None else _waiting(settings),
    }


def unlisted(device: dict[str, Any]) -> int:
    """Bytes of an entry's device that hold processes which the driver does not list; 0 if none shows."""
    memory = device["memory"]
    return unlisted_bytes(
        device["unattributed_bytes"], memory["total_bytes"], shared_with_host=memory["shared_with_host"]
    )


def leases_report(leases: tuple[LeaseRecord, ...], settings: Settings) -> dict[str, Any]:
    """The object that `gpulab leases --json` prints."""
    return {
        "schema": "gpulab.leases/1",
        "leases": [lease_entry(lease, settings) for lease in leases],
        "waiting": _waiting(settings),
    }


def lease_entry(lease: LeaseRecord, settings: Settings) -> dict[str, Any]:
    """One lease as programs read it; the pid is of a process that keeps it alive, if we may see one."""
    return {
        "id": lease.id,
        "state": holding_state(lease, settings),
        "gpus": list(lease.gpus),
        "mode": lease.mode,
        "memory_bytes": lease.memory_bytes,
        "priority": lease.priority,
        **_owner(lease),
        "pid": keeper(lease, _path(lease, settings)),
        "kernel_id": lease.kernel_id,
        "notebook": lease.notebook,
        "since": _iso(lease.since),
        "container": lease.container,
    }


def waiting_entry(ticket: LeaseRecord, position: int) -> dict[str, Any]:
    """One who waits, as programs read it; `gpus` is how many, `position` counts from 1.

    One that does not answer (stopped, or busy in a long call) keeps its place and is passed over.
    """
    return {
        "id": ticket.id,
        "position": position,
        "gpus": ticket.count,
        "memory_bytes": ticket.memory_bytes,
        "mode": ticket.mode,
        "priority": ticket.priority,
        **_owner(ticket),
        "pid": ticket.pid,
        "since": _iso(ticket.since),
        "answers": ticket.answers,
    }


def holding_state(lease: LeaseRecord, settings: Settings) -> str:
    """active; idle once its holder has done nothing for `idle_after`; reclaimable once the rules allow it."""
    if lease.idle_since is None:
        return lease.state
    now, after, most = time.time(), settings.idle_after, settings.max_lease_age
    idle = after is not None and now - lease.idle_since >= after
    if (idle and settings.on_idle == "stop") or (most is not None and now - lease.since >= most):
        return "reclaimable"
    return "idle" if idle else lease.state


def _waiting(settings: Settings) -> list[dict[str, Any]]:
    return [waiting_entry(ticket, place) for place, ticket in enumerate(waiting_now(settings), 1)]


def _owner(claim: LeaseRecord) -> dict[str, Any]:
    """Its owner, by the name that this process may know; the number owns the file, which everybody sees."""
    user = claim.user if claim.alias is None else None if claim.alias == HIDDEN else claim.alias
    return {"user": user, "uid": claim.uid}


def _device_entry(
    device: Device, leases: tuple[LeaseRecord, ...] | None, visible: frozenset[str] | None, settings: Settings
) -> dict[str, Any]:
    entry = device.to_dict()
    holders = [lease for lease in leases or () if device.uuid in lease.gpus]
    entry["sampled_at"] = _iso(device.sampled_at)
    entry["detailed_at"] = _iso(device.detailed_at)
    entry["drained"] = is_drained(device, settings.drained)
    entry["visible"] = visible is None or device.uuid in visible
    entry["leases"] = None if leases is None else [lease.id for lease in holders]
    if device.processes is not None:
        entry["processes"] = [
            {
                **process._asdict(),
                "user": shown_login(process.user, settings.names),
                "lease": lease_of(process, holders),
            }
            for process in device.processes
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


def _path(lease: LeaseRecord, settings: Settings) -> str:
    return os.path.join(find(settings).path, f"lease-{lease.id}")
