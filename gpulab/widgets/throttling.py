"""What slows a device down, for its badge."""

from __future__ import annotations

from gpulab.hardware.devices import Device
from gpulab.hardware.throttling import brake_of

__all__ = ["brake"]


def brake(device: Device) -> tuple[str, str] | None:
    """The gravest reason for which the device runs slower than it could; None if none is known."""
    return brake_of(device.throttle_reasons) if device.state == "ok" else None
