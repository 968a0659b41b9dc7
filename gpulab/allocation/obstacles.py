"""What a device can never be handed out for, or to nobody at all, and why: the rules, the mask, its size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulab.config import Settings
from gpulab.hardware.devices import Device
from gpulab.units import format_bytes

if TYPE_CHECKING:
    from gpulab.allocation.occupancy import Occupancy, Want

__all__ = ["closed", "is_beyond", "is_named", "obstacle"]


def obstacle(place: Occupancy, want: Want) -> str | None:
    """Why this device could not serve `want` even if nobody used it."""
    if place.closed:
        return place.closed
    if want.visible is not None and place.uuid not in want.visible:
        return f"outside {want.bound}"
    if want.named is not None and place.uuid not in want.named:
        return f"not what {want.policy} names"
    if want.gpus > 1 and place.device.kind == "mig":
        return "a MIG slice, of which CUDA uses one per process, so it is handed out alone"
    return _too_small(place, want) or _too_large(place, want)


def _too_small(place: Occupancy, want: Want) -> str | None:
    memory = place.device.memory
    if not want.exclusive and (memory.total_bytes is None or memory.used_bytes is None):
        return "its memory is unknown, so it cannot be shared"
    if (
        want.memory_bytes is not None
        and memory.total_bytes is not None
        and want.memory_bytes > place.capacity
    ):
        return f"{format_bytes(max(0, place.capacity))} can be leased of it"
    return None


def _too_large(place: Occupancy, want: Want) -> str | None:
    """An exclusive lease is of the whole GPU, whatever cap its holder asks for."""
    if not (want.exclusive and place.beyond_bound):
        return None
    total = place.device.memory.total_bytes
    size = "its size is unknown" if total is None else f"the whole of it is {format_bytes(total)}"
    return f"{size}, and the administrator bounds what one lease may take, so ask for a share of it"


def closed(device: Device, rules: Settings, *, is_parent: bool) -> str | None:
    """Why a device is handed out to nobody; None if it is offered."""
    if device.state != "ok" or device.uuid is None:
        return device.message or device.state
    if rules.devices is not None and not is_named(device, rules.devices):
        return "not among the devices that the administrator lets gpulab hand out"
    if is_named(device, rules.drained):
        return "taken out of service by the administrator"
    if is_parent:
        return "divided into MIG slices, which are offered instead"
    if device.compute_mode == "prohibited":
        return "its compute mode forbids compute processes"
    return None


def is_beyond(device: Device, bound: int | None) -> bool:
    """Whether the whole of it is more than a lease may take, or may be."""
    total = device.memory.total_bytes
    return bound is not None and (total is None or total > bound)


def is_named(device: Device, entries: tuple[str, ...]) -> bool:
    """Whether an entry of the administrator, a UUID or its beginning, names this device or its parent."""
    names = [uuid.lower() for uuid in (device.uuid, device.parent_uuid) if uuid]
    return any(name.startswith(entry.lower()) for name in names for entry in entries)
