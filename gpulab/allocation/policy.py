"""Who gets which GPU: pure functions from what is seen to a ranking in which each place has its reason."""

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from gpulab.allocation.holders import strangers_bytes
from gpulab.allocation.records import LeaseRecord
from gpulab.config import POLICIES
from gpulab.errors import NoFreeGpuError, NoGpuError, RequestError
from gpulab.hardware.devices import UNLISTED_FRACTION, Device, Snapshot
from gpulab.units import format_bytes

__all__ = ["CONTEXT_RESERVE_BYTES", "Candidate", "Request", "choose", "is_drained", "rank"]

CONTEXT_RESERVE_BYTES = 512 * 2**20
"""Kept free on a shared GPU for what CUDA itself needs beside the leases' memory."""

MIN_SHARE_BYTES = 64 * 2**20
"""CUDA's own context takes more; a smaller number is a unit forgotten."""


class Request(NamedTuple):
    """What is asked for."""

    gpus: int = 1
    memory_bytes: int | None = None
    exclusive: bool = False
    policy: str = "idlest"
    priority: str = "normal"
    visible: frozenset[str] | None = None
    """UUIDs inside the inherited mask; None if there is no mask."""
    prefer: tuple[str, ...] = ()
    """UUIDs to be chosen first if they are free, for a restart."""

    @property
    def mode(self) -> str:
        return "shared" if self.memory_bytes is not None and not self.exclusive else "exclusive"

    def checked(self) -> "Request":
        """Return self. Raises RequestError for what no machine could serve."""
        if self.gpus < 1:
            raise RequestError(f"{self.gpus} GPUs cannot be handed out; ask for one or more.")
        if self.policy not in POLICIES:
            raise RequestError(f"There is no policy {self.policy!r}; choose {', '.join(POLICIES)}.")
        if self.memory_bytes is not None and self.memory_bytes < MIN_SHARE_BYTES:
            raise RequestError(
                f"A share of {format_bytes(self.memory_bytes)} is too small to compute with; "
                "write a unit, for example 8GiB."
            )
        if self.priority not in ("low", "normal", "high"):
            raise RequestError(f"There is no priority {self.priority!r}; choose low, normal or high.")
        return self


class Candidate(NamedTuple):
    """A device, whether it can serve the request now, and why."""

    device: Device
    fits: bool
    reason: str
    usable: bool = True
    """Whether it could serve the request once it is free."""
    score: tuple[float, ...] = ()


def rank(
    snapshot: Snapshot,
    leases: tuple[LeaseRecord, ...],
    request: Request,
    drained: tuple[str, ...] = (),
) -> tuple[Candidate, ...]:
    """Order the devices, best first: those that fit, those that may later, those that never will."""
    parents = {device.parent_uuid for device in snapshot.devices}
    candidates = [
        _never(device, request, is_drained(device, drained), device.uuid in parents)
        or _taken(device, leases, request)
        or _free(device, leases, request)
        for device in snapshot.devices
    ]
    return tuple(sorted(candidates, key=lambda c: (not c.fits, not c.usable, c.score, c.device.index)))


def is_drained(device: Device, drained: tuple[str, ...]) -> bool:
    """Whether an entry of the administrator, a UUID or its beginning, names this device or its parent."""
    names = [uuid.lower() for uuid in (device.uuid, device.parent_uuid) if uuid]
    return any(name.startswith(entry.lower()) for name in names for entry in drained)


def choose(candidates: tuple[Candidate, ...], request: Request) -> tuple[Device, ...]:
    """Take the best devices of a ranking.

    Raises NoGpuError if this machine could never serve the request, NoFreeGpuError if it cannot now.
    """
    usable = sum(candidate.usable for candidate in candidates)
    if usable < request.gpus:
        why = _reasons(candidate for candidate in candidates if not candidate.usable)
        size = f" with {format_bytes(request.memory_bytes)}" if request.mode == "shared" else ""
        raise NoGpuError(
            f"{_asked(request.gpus, size)} and this machine has {usable or 'none'} to hand out{why}; "
            + (f"ask for at most {usable}." if usable else "`gpulab doctor` says more.")
        )
    fitting = [candidate for candidate in candidates if candidate.fits]
    if len(fitting) < request.gpus:
        why = _reasons(c for c in candidates if c.usable and not c.fits)
        raise NoFreeGpuError(
            f"{_asked(request.gpus)} and {len(fitting) or 'none'} of {usable} is free; "
            f"shut down a kernel that no longer needs its GPU, or wait{why}."
        )
    return tuple(candidate.device for candidate in fitting[: request.gpus])


def _asked(gpus: int, size: str = "") -> str:
    return f"1 GPU{size} was asked for" if gpus == 1 else f"{gpus} GPUs{size} were asked for"


def _reasons(candidates: Iterable[Candidate]) -> str:
    by_reason: dict[str, list[str]] = {}
    for candidate in candidates:
        by_reason.setdefault(candidate.reason.rstrip("."), []).append(str(candidate.device.index))
    shown = [
        f"GPU{'s' if len(indices) > 1 else ''} {', '.join(indices)}: {reason}"
        for reason, indices in by_reason.items()
    ]
    return f" ({'; '.join(shown)})" if shown else ""


def _never(device: Device, request: Request, drained: bool, is_parent: bool) -> Candidate | None:
    """Why this device could not serve the request even if nobody used it."""
    total = device.memory.total_bytes
    reason = None
    if device.state != "ok" or device.uuid is None:
        reason = device.message or device.state
    elif drained:
        reason = "taken out of service by the administrator"
    elif is_parent:
        reason = "divided into MIG slices, which are offered instead"
    elif request.visible is not None and device.uuid not in request.visible:
        reason = "outside CUDA_VISIBLE_DEVICES"
    elif device.compute_mode == "prohibited":
        reason = "its compute mode forbids compute processes"
    elif request.gpus > 1 and device.kind == "mig":
        reason = "a MIG slice, of which CUDA uses one per process, so it is handed out alone"
    elif request.mode == "shared" and (total is None or device.memory.used_bytes is None):
        reason = "its memory is unknown, so it cannot be shared"
    elif request.memory_bytes is not None and total is not None and request.memory_bytes > _capacity(device):
        reason = f"{format_bytes(_capacity(device))} can be leased of it"
    return None if reason is None else Candidate(device, fits=False, reason=reason, usable=False)


def _taken(device: Device, leases: tuple[LeaseRecord, ...], request: Request) -> Candidate | None:
    """Why this device cannot serve the request now."""
    holders = [lease for lease in leases if device.uuid in lease.gpus]
    blocking = [lease for lease in holders if lease.mode == "exclusive" or request.mode == "exclusive"]
    reason = None
    if blocking:
        reason = " and ".join(_holder(lease) for lease in blocking)
    elif request.mode == "exclusive" or device.compute_mode == "exclusive_process":
        reason = _strangers(device)
    elif (free := _shareable(device, holders)) < (request.memory_bytes or 0):
        reason = f"{format_bytes(max(0, free))} of it is left to share"
    return None if reason is None else Candidate(device, fits=False, reason=reason)


def _free(device: Device, leases: tuple[LeaseRecord, ...], request: Request) -> Candidate:
    """Score a device that fits: unknown never looks idle."""
    preferred = 0.0 if device.uuid in request.prefer else 1.0
    unseen = float(device.processes is None)
    busy = 101.0 if device.gpu_percent is None else device.gpu_percent
    used = float("inf") if device.memory.used_bytes is None else float(device.memory.used_bytes)
    if request.mode == "shared":
        holders = [lease for lease in leases if device.uuid in lease.gpus]
        left = _shareable(device, holders)
        reason = f"{format_bytes(left)} left to share, the tightest fit first so that whole GPUs stay free"
        return Candidate(device, fits=True, reason=reason, score=(preferred, unseen, float(left), busy))
    shown = "utilization unknown" if device.gpu_percent is None else f"{device.gpu_percent:.0f} % busy"
    reason = f"free, {shown}, {format_bytes(device.memory.used_bytes)} in use"
    return Candidate(device, fits=True, reason=reason, score=(preferred, unseen, busy, used))


def _capacity(device: Device) -> int:
    total = device.memory.total_bytes or 0
    return total - (device.memory.reserved_bytes or 0) - CONTEXT_RESERVE_BYTES


def _shareable(device: Device, holders: list[LeaseRecord]) -> int:
    """What may still be leased: strangers on top of the leases, but nobody's process counted twice."""
    leased = sum(lease.memory_bytes or 0 for lease in holders) + strangers_bytes(device, holders)
    return _capacity(device) - max(leased, device.memory.used_bytes or 0)


def _holder(lease: LeaseRecord) -> str:
    process = f" (process {lease.pid})" if lease.pid is not None else ""
    pid = f" in {os.path.basename(lease.notebook)}" if lease.notebook else process
    clock = time.strftime("%H:%M", time.localtime(lease.since))
    return f"leased by {lease.user or lease.uid}{pid} since {clock}"


def _strangers(device: Device) -> str | None:
    """Who computes on an unleased device: colleagues without gpulab, or orphans of killed kernels."""
    if device.processes is None:
        used, total = device.memory.used_bytes, device.memory.total_bytes
        if used is None or total is None or used > UNLISTED_FRACTION * total:
            return f"its processes cannot be listed and {format_bytes(used)} is in use"
        return None
    computing = [process for process in device.processes if process.type == "compute"]
    if not computing:
        unlisted = device.unlisted_bytes
        held = "of it is in use by processes that the driver does not list"
        return f"{format_bytes(unlisted)} {held}" if unlisted else None
    first = computing[0]
    others = f" and {len(computing) - 1} more" if len(computing) > 1 else ""
    who = f"{first.command or 'a process'} (process {first.pid} of {first.user or 'another namespace'})"
    return f"in use without a lease by {who}{others}"
