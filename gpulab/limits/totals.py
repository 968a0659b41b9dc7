"""How much memory the devices have that this process sees, asked without NVML or CUDA in this process."""

from __future__ import annotations

from gpulab import config
from gpulab.errors import RequestError
from gpulab.hardware.devices import Device
from gpulab.hardware.observe import observe

__all__ = ["count_in_mask", "smallest_total", "visible_devices"]


def visible_devices() -> tuple[Device, ...]:
    """The devices within this process's mask; all of them where the mask cannot be read."""
    settings = config.load()
    devices = observe(settings=settings, max_age=float("inf")).devices
    if settings.visible_devices is None:
        return devices
    from gpulab.hardware.mask import visible_uuids

    try:
        mask = visible_uuids(devices, settings.visible_devices, settings.device_order)
    except RequestError:
        return devices
    return devices if mask is None else tuple(device for device in devices if device.uuid in mask)


def smallest_total() -> int | None:
    """Bytes of the visible device with the least memory; None if that is not known."""
    totals = [device.memory.total_bytes for device in visible_devices()]
    known = [total for total in totals if total is not None]
    return min(known, default=None)


def count_in_mask() -> int:
    """How many devices the mask names, at least 1: enough to prepare what needs an entry for each."""
    mask = config.load().visible_devices
    return max(1, len([entry for entry in (mask or "").split(",") if entry.strip()]))
