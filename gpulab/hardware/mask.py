"""CUDA_VISIBLE_DEVICES, read as CUDA reads it: which of the machine's devices a process may use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gpulab.errors import RequestError
from gpulab.hardware.devices import Device

__all__ = ["visible_uuids"]

_INTEGER = re.compile("[+-]?[0-9]+")


def visible_uuids(
    snapshot_devices: Iterable[Device], mask: str | None, device_order: str | None
) -> frozenset[str] | None:
    """The UUIDs of the devices that a mask leaves visible.

    Parameters
    ----------
    snapshot_devices
        GPUs and MIG slices in NVML's order, which is that of the PCI bus.
    mask
        The value of CUDA_VISIBLE_DEVICES; None if it is not set.
    device_order
        The value of CUDA_DEVICE_ORDER.

    Returns
    -------
    frozenset or None
        None without a mask: every device. CUDA reads entry by entry and stops at the first one that
        names no device, or is of another kind (number, GPU, MIG) than the first; a device named
        twice makes the whole mask empty.

    Raises
    ------
    RequestError
        The mask has an index, and which GPU that is depends on an order that is not known here.
    """
    if mask is None:
        return None
    devices = list(snapshot_devices)
    entries = [entry.strip() for entry in mask.split(",")]
    found: list[str] = []
    for entry in entries:
        device = _named(entry, devices, device_order) if _kind(entry) == _kind(entries[0]) else None
        if device is None or device.uuid is None:
            break
        if device.uuid in found:
            return frozenset()
        found.append(device.uuid)
    return frozenset(found)


def _kind(entry: str) -> str:
    return entry[:4] if entry.startswith(("GPU-", "MIG-")) else "number"


def _named(entry: str, devices: Sequence[Device], device_order: str | None) -> Device | None:
    """The device of one entry, or None if CUDA stops there."""
    if _kind(entry) != "number":
        return _by_uuid(entry, devices)
    digits = _INTEGER.match(entry)  # as strtoul: what follows the digits does not count
    index = int(digits.group()) if digits else -1
    gpus = [device for device in devices if device.kind == "gpu"]
    if not 0 <= index < len(gpus):
        return None
    if device_order != "PCI_BUS_ID" and len({device.name for device in gpus}) > 1:
        raise RequestError(
            f"CUDA_VISIBLE_DEVICES names GPU {index} by its number, which on a machine with different GPUs "
            "depends on their speed; set CUDA_DEVICE_ORDER=PCI_BUS_ID or use UUIDs."
        )
    return gpus[index]


def _by_uuid(entry: str, devices: Sequence[Device]) -> Device | None:
    """A full UUID, or the beginning of exactly one."""
    kind = "gpu" if entry.startswith("GPU-") else "mig"
    same = [device for device in devices if device.kind == kind and device.uuid is not None]
    exact = [device for device in same if device.uuid == entry]
    begun = [device for device in same if (device.uuid or "").startswith(entry)]
    matches = exact or begun
    return matches[0] if len(matches) == 1 else None
