"""Who gets which GPU: pure functions from what is seen to a ranking in which each place has its reason."""

import os
import time
from collections.abc import Iterable

from gpulab.allocation.candidates import Candidate, explain, reasons
from gpulab.allocation.naming import shown_login
from gpulab.allocation.obstacles import is_named, obstacle
from gpulab.allocation.occupancy import CONTEXT_RESERVE_BYTES, Occupancy, Want, occupancies
from gpulab.allocation.queue import gpus_held, suppose
from gpulab.allocation.records import LeaseRecord
from gpulab.allocation.requests import Request, asked, named, own_uid
from gpulab.allocation.scoring import score, words
from gpulab.config import Settings
from gpulab.errors import NoFreeGpuError, NoGpuError
from gpulab.hardware.devices import Device, Snapshot
from gpulab.hardware.owners import lease_in_environment
from gpulab.units import format_bytes

__all__ = [
    "CONTEXT_RESERVE_BYTES",
    "Candidate",
    "Request",
    "choose",
    "explain",
    "is_drained",
    "rank",
]

_ORDER = {"free": 0, "kept": 1, "taken": 1, "quota": 1, "never": 2}


def rank(
    snapshot: Snapshot,
    leases: tuple[LeaseRecord, ...],
    request: Request,
    rules: Settings,
    ahead: Iterable[LeaseRecord] = (),
    *,
    uid: int | None = None,
) -> tuple[Candidate, ...]:
    """Order the devices, best first: those that fit, those that may later, those that never will.

    Parameters
    ----------
    leases
        All that live now, of every account.
    rules
        Settings with the administrator's bounds.
    ahead
        The tickets that come before this request, in order (`queue.before`).
    uid
        Whose quota the request counts to; default: this process's.
    """
    places = occupancies(snapshot, leases, rules)
    want = _want(request, snapshot.devices, rules)
    held = gpus_held(leases)
    asker = own_uid() if uid is None else uid
    quota = _quota(leases, held[asker], want, rules, asker)
    later = suppose(ahead, places, rules, held) if ahead else places
    waits_for_own = quota is None and _is_over(held[asker], want, rules)
    live = frozenset(lease.id for lease in leases)
    candidates = []
    for now, then in zip(places, later, strict=True):
        verdict, reason = _judge(now, want, quota, live, rules.names)
        if verdict == "free" and waits_for_own:
            verdict, reason = "kept", "kept until requests of yours that wait longer are served"
        elif verdict == "free" and (then.is_barred(want) or not then.fits(want)):
            verdict, reason = "kept", f"kept for {_requests(then.kept)}"
        points = score(now, want) if verdict == "free" else ()
        preferred = (float(now.uuid not in request.prefer), *points)
        candidates.append(Candidate(now.device, verdict, reason, preferred, now.label, request.policy))
    # not by index: NVML lists slices after their GPU, and a sort keeps that order
    return tuple(sorted(candidates, key=lambda c: (_ORDER[c.verdict], c.score if c.fits else ())))


def is_drained(device: Device, drained: tuple[str, ...]) -> bool:
    """Whether an entry of the administrator, a UUID or its beginning, names this device or its parent."""
    return is_named(device, drained)


def choose(candidates: tuple[Candidate, ...], request: Request) -> tuple[Device, ...]:
    """Take the best devices of a ranking.

    Raises NoGpuError if this machine could never serve the request, NoFreeGpuError if it cannot now.
    """
    usable = sum(candidate.usable for candidate in candidates)
    if usable < request.gpus:
        why = reasons(candidate for candidate in candidates if not candidate.usable)
        size = f" with {format_bytes(request.memory_bytes)}" if request.mode == "shared" else ""
        raise NoGpuError(
            f"{asked(request.gpus, size)} and this machine has {usable or 'none'} to hand out{why}; "
            + (f"ask for at most {usable}." if usable else "`gpulab doctor` says more.")
        )
    over = next((candidate.reason for candidate in candidates if candidate.verdict == "quota"), None)
    if over is not None:
        raise NoFreeGpuError(f"{asked(request.gpus)}, but {over}; give one back, or wait.")
    fitting = [candidate for candidate in candidates if candidate.fits]
    if len(fitting) < request.gpus:
        why = reasons(c for c in candidates if c.usable and not c.fits)
        raise NoFreeGpuError(
            f"{asked(request.gpus)} and {len(fitting) or 'none'} of {usable} is free; "
            f"shut down a kernel that no longer needs its GPU, or wait{why}."
        )
    return tuple(candidate.device for candidate in fitting[: request.gpus])


def _requests(count: int) -> str:
    return "1 request that waits longer" if count == 1 else f"{count} requests that wait longer"


def _want(request: Request, devices: Iterable[Device], rules: Settings) -> Want:
    by_container = rules.outer_devices is None and rules.container_devices is not None
    return Want(
        gpus=request.gpus,
        memory_bytes=request.memory_bytes,
        exclusive=request.mode == "exclusive",
        policy=request.policy,
        visible=request.visible,
        bound="NVIDIA_VISIBLE_DEVICES" if by_container else "CUDA_VISIBLE_DEVICES",
        named=named(request.policy, devices),
    )


def _is_over(held: int, want: Want, rules: Settings) -> bool:
    return rules.max_gpus_per_user is not None and held + want.gpus > rules.max_gpus_per_user


def _quota(
    leases: Iterable[LeaseRecord],
    held: int,
    want: Want,
    rules: Settings,
    uid: int | None,
) -> str | None:
    """Why this user gets nothing now; None within the quota."""
    if not held or not _is_over(held, want, rules):
        return None
    own = "; ".join(
        f"lease {lease.id} on {', '.join(gpu[:12] for gpu in lease.gpus)}"
        for lease in leases
        if lease.uid == uid
    )
    count = f"{held} GPU{'s' if held > 1 else ''}"
    return f"you hold {count} ({own}) and the administrator allows each user {rules.max_gpus_per_user}"


def _judge(
    place: Occupancy, want: Want, quota: str | None, live: frozenset[str], names: str | None
) -> tuple[str, str]:
    """The verdict on a device as the machine is now, and the reason."""
    never = obstacle(place, want)
    if never is not None:
        return "never", never
    if quota is not None:
        return "quota", quota
    if not place.fits(want):
        return "taken", _taken(place, want, live, names)
    return "free", words(place, want)


def _taken(place: Occupancy, want: Want, live: frozenset[str], names: str | None) -> str:
    """Why this device cannot serve the request now."""
    blocking = [
        lease for lease in place.holders if lease.mode == "exclusive" or want.exclusive or place.single
    ]
    if blocking:
        said = " and ".join(_holder(lease) for lease in blocking)
        shared = place.single and not want.exclusive and not place.exclusive
        return f"{said}, and its compute mode admits one process" if shared else said
    if want.exclusive or place.single:
        return _strangers(place, live, names)
    return f"{format_bytes(max(0, place.left))} of it is left to share"


def _holder(lease: LeaseRecord) -> str:
    process = f" (process {lease.pid})" if lease.pid is not None else ""
    pid = f" in {os.path.basename(lease.notebook)}" if lease.notebook else process
    clock = time.strftime("%H:%M", time.localtime(lease.since))
    return f"leased by {lease.who}{pid} since {clock}"


def _strangers(place: Occupancy, live: frozenset[str], names: str | None) -> str:
    """Who computes on an unleased device: colleagues without gpulab, or orphans of killed kernels."""
    device = place.device
    if device.processes is None:
        return f"its processes cannot be listed and {format_bytes(device.memory.used_bytes)} is in use"
    computing = [process for process in place.strangers if process.type == "compute"]
    if not computing:
        held = "of it is in use by processes that the driver does not list"
        return f"{format_bytes(device.unlisted_bytes)} {held}"
    first = computing[0]
    others = f" and {len(computing) - 1} more" if len(computing) > 1 else ""
    whose = shown_login(first.user, names) or "another namespace"
    who = f"{first.command or 'a process'} (process {first.pid} of {whose})"
    left_by = lease_in_environment(first.pid) if first.user is not None else None
    if left_by is not None and left_by not in live:
        return (
            f"in use by {who}{others}, left behind when the holder of lease {left_by} ended; end it with kill"
        )
    return f"in use without a lease by {who}{others}"
