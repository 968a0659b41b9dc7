"""Sentences that several doors of a kernel say in the same way."""

from __future__ import annotations

from gpulab.allocation.policy import Request
from gpulab.allocation.session import Lease
from gpulab.allocation.waiting import Standing
from gpulab.units import format_bytes

__all__ = ["SCOPES", "asked", "no_gpu", "ownership", "place", "short_uuid", "which_gpu"]

SCOPES = {"account": "leases of this account only", "host": "leases of the whole host"}


def short_uuid(uuid: str) -> str:
    """`GPU-1234abcd…`: enough to tell the devices of a machine apart."""
    return uuid if len(uuid) <= 13 else f"{uuid[:12]}…"


def no_gpu(reason: str) -> str:
    """Why a kernel runs on the CPU."""
    return f"this kernel has no GPU: {reason}"


def ownership(lease: Lease, scope: str) -> str:
    """What a lease gives, as in: NVIDIA T4, GPU-1234abcd… is yours (leases of this account only)."""
    named = _each(lease)
    if lease.mode == "shared":
        named = f"{format_bytes(lease.memory_bytes)} of {named}"
    bound = f" ({SCOPES['account']})" if scope == "account" else ""
    return f"{named} {'is' if len(lease.gpus) == 1 else 'are'} yours{bound}."


def which_gpu(lease: Lease) -> str:
    """The GPU or the share of a lease, to begin a sentence with: `is` fits whether one or several."""
    if len(lease.gpus) > 1:
        return f"your set of {len(lease.gpus)} GPUs"
    share = f"{format_bytes(lease.memory_bytes)} of " if lease.mode == "shared" else ""
    return f"{share}{_each(lease)}"


def asked(gpus: int, mode: str, memory_bytes: int | None) -> str:
    """What a request is for: `1 GPU`, `8.0 GiB of a GPU`."""
    if mode == "shared":
        return f"{format_bytes(memory_bytes)} of a GPU"
    return "1 GPU" if gpus == 1 else f"{gpus} GPUs"


def place(standing: Standing, request: Request) -> str:
    """Where a kernel stands in the queue, and in a second line what its user can do."""
    what = asked(request.gpus, request.mode, request.memory_bytes)
    it = "it is" if request.gpus == 1 else "they are"
    return (
        f"this kernel waits for {what}: place {standing.position} of {standing.total} in the queue.\n"
        f"Go on without: {it} attached before the first cell after its turn. `%gpu wait` waits in sight."
    )


def _each(lease: Lease) -> str:
    """Every GPU with its name, if this process was told the names."""
    uuids = [short_uuid(uuid) for uuid in lease.gpus]
    if len(uuids) == 1:
        return f"{lease.devices}, {uuids[0]}" if lease.devices else uuids[0]
    names = (lease.devices or "").split(", ")
    if len(names) == len(uuids):  # a name may hold a comma itself
        uuids = [f"{uuid} ({name})" for uuid, name in zip(uuids, names, strict=True)]
    return f"{', '.join(uuids[:-1])} and {uuids[-1]}"
