"""CUDA_VISIBLE_DEVICES, read as CUDA reads it: which of the machine's devices a process may use.

What bounds the choice where others hand out the devices:

Slurm
    sets CUDA_VISIBLE_DEVICES for each step, also to `NoDevFiles` for none. With ConstrainDevices=yes
    NVML and CUDA see the job's devices only and count them from 0, and so does the mask; without it the
    mask counts those of the machine. Either way its numbers mean what CUDA makes of them here, so no
    other variable is needed. SLURM_JOB_GPUS counts those of the machine even where the job cannot see
    them, so it would be misread; GPU_DEVICE_ORDINAL repeats the mask for OpenCL.
Docker, Kubernetes
    leave in a container only what it was given, so NVML's list is the bound. A privileged container
    sees everything: there the UUIDs in NVIDIA_VISIBLE_DEVICES are what it was given. Its other forms
    (`all`, `void`, numbers of the host, a path) say nothing about the devices seen from inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gpulab.config import Settings
from gpulab.errors import RequestError
from gpulab.hardware.devices import Device
from gpulab.hardware.states import denied

__all__ = ["bounds", "visible_uuids"]

_INTEGER = re.compile("[+-]?[0-9]+")
_INSTANCE = re.compile(r"MIG-(GPU-[^/]+)/[0-9]+/[0-9]+")


def bounds(devices: Sequence[Device], settings: Settings) -> frozenset[str] | None:
    """The UUIDs that a choice may be made from: within the mask from outside, and the container's devices.

    None if nothing bounds it. Raises RequestError as `visible_uuids` does.
    """
    mask = visible_uuids(devices, settings.outer_devices, settings.outer_order)
    given = _given_to_container(devices, settings.container_devices)
    if mask is None or given is None:
        return given if mask is None else mask
    return mask & given


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
        twice makes the whole mask empty. An entry for a GPU that is divided into slices means the
        first of them, the only one that CUDA would use. Several slices all count, though CUDA uses
        one per process: they are handed out one by one.

    Raises
    ------
    RequestError
        The mask has an index or an old name of a slice, and which device that is cannot be known here.
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


def _given_to_container(devices: Iterable[Device], given: str | None) -> frozenset[str] | None:
    """The UUIDs in NVIDIA_VISIBLE_DEVICES, a GPU's with all its slices; None if it names none of ours."""
    entries = {entry.strip().partition("::")[0] for entry in (given or "").split(",")}  # ::N is a replica
    named = (d.uuid for d in devices if d.uuid and (d.uuid in entries or d.parent_uuid in entries))
    return frozenset(named) or None


def _kind(entry: str) -> str:
    return entry[:4] if entry.startswith(("GPU-", "MIG-")) else "number"


def _named(entry: str, devices: Sequence[Device], device_order: str | None) -> Device | None:
    """The device of one entry, or None if CUDA stops there."""
    if _kind(entry) == "MIG-":
        return _slice(entry, devices)
    device = (
        _by_uuid(entry, devices, "gpu")
        if _kind(entry) == "GPU-"
        else _by_number(entry, devices, device_order)
    )
    slices = (part for part in devices if device is not None and part.parent_uuid == device.uuid)
    return next(slices, device) if device is not None and device.uuid else device


def _by_number(entry: str, devices: Sequence[Device], device_order: str | None) -> Device | None:
    digits = _INTEGER.match(entry)  # as strtoul: what follows the digits does not count
    index = int(digits.group()) if digits else -1
    # CUDA does not count a GPU that it may not open, such as another job's
    gpus = [d for d in devices if d.kind == "gpu" and not (d.uuid is None and d.message == denied(d.index))]
    if not 0 <= index < len(gpus):
        return None
    if device_order == "PCI_BUS_ID" or len({device.name for device in gpus}) == 1:
        return gpus[index]
    return _by_speed(index, devices, device_order)


def _by_speed(index: int, devices: Sequence[Device], device_order: str | None) -> Device | None:
    """Among different GPUs: in the order of CUDA itself, which a child asks where it can."""
    from gpulab.hardware.cuda_order import cuda_order  # only where GPUs differ: it starts processes

    order = () if any(device.kind == "mig" for device in devices) else cuda_order(device_order)
    by_digits = {_digits(device.uuid): device for device in devices if device.uuid}
    if not order or not set(order) <= set(by_digits):
        raise RequestError(
            f"CUDA_VISIBLE_DEVICES names GPU {index} by its number, which on a machine with different GPUs "
            "depends on their speed; set CUDA_DEVICE_ORDER=PCI_BUS_ID or use UUIDs."
        )
    return by_digits[order[index]] if index < len(order) else None


def _digits(uuid: str) -> str:
    return uuid.partition("-")[2].replace("-", "").lower()


def _by_uuid(entry: str, devices: Sequence[Device], kind: str) -> Device | None:
    """A full UUID, or the beginning of exactly one."""
    same = [device for device in devices if device.kind == kind and device.uuid is not None]
    exact = [device for device in same if device.uuid == entry]
    begun = [device for device in same if (device.uuid or "").startswith(entry)]
    matches = exact or begun
    return matches[0] if len(matches) == 1 else None


def _slice(entry: str, devices: Sequence[Device]) -> Device | None:
    """A slice by its own UUID, or by its GPU's and the numbers of its instances, as older drivers name it."""
    old = _INSTANCE.fullmatch(entry)
    if old is None:
        return _by_uuid(entry, devices, "mig")
    found = next((device for device in devices if device.uuid == entry), None)
    parent = _by_uuid(old.group(1), devices, "gpu")
    parts = [part.uuid or "" for part in devices if parent is not None and part.parent_uuid == parent.uuid]
    if found is None and parts and not any(_INSTANCE.fullmatch(part) for part in parts):
        raise RequestError(
            f"CUDA_VISIBLE_DEVICES names {entry}, a slice by the numbers of its instances, which this driver "
            "has replaced by UUIDs; use the UUID that `gpulab status` shows."
        )
    return found
