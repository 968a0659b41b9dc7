"""Calls about the simulated system: versions, counts, and the handles of its GPUs and slices."""

from __future__ import annotations

import ctypes
from typing import Any

from gpulab.hardware.simulation.registry import BAD_ARGUMENT, NOT_FOUND, OK, call, device_call, out, write
from gpulab.hardware.simulation.target import Target

__all__: list[str] = []


@call("nvmlSystemGetDriverVersion")
def _driver_version(target: Target, buffer: Any, length: Any) -> int:
    return write(buffer, length, target.machine.driver)


@call("nvmlSystemGetNVMLVersion")
def _nvml_version(target: Target, buffer: Any, length: Any) -> int:
    return write(buffer, length, f"{target.machine.cuda.partition('.')[0]}.{target.machine.driver}")


@call("nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2")
def _cuda_version(target: Target, version: Any) -> int:
    major, _, minor = target.machine.cuda.partition(".")
    out(version).value = int(major) * 1000 + int(minor) * 10
    return OK


@call("nvmlSystemGetProcessName")
def _process_name(_target: Target, pid: Any, buffer: Any, length: Any) -> int:
    try:
        with open(f"/proc/{pid.value}/comm", encoding="utf-8", errors="replace") as file:
            return write(buffer, length, file.read().strip())
    except OSError:
        return NOT_FOUND


@call("nvmlDeviceGetCount", "nvmlDeviceGetCount_v2")
def _count(target: Target, count: Any) -> int:
    out(count).value = len(target.machine.devices)
    return OK


# --- handles ---


def _point(reference: Any, address: int) -> None:
    """Make a handle, an opaque pointer, of a number that only this module reads."""
    ctypes.c_void_p.from_address(ctypes.addressof(out(reference))).value = address


@call("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2")
def _by_index(target: Target, _index: Any, handle: Any) -> int:
    if target.gpu is None:
        return BAD_ARGUMENT
    _point(handle, target.handle)
    return OK


@call("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetHandleByPciBusId_v2")
def _by_name(target: Target, _name: Any, handle: Any) -> int:
    if target.gpu is None:
        return NOT_FOUND
    _point(handle, target.handle)
    return OK


@device_call("nvmlDeviceGetMigDeviceHandleByIndex")
def _mig_handle(target: Target, index: Any, handle: Any) -> int:
    place = getattr(index, "value", index)
    if place >= len(target.device.slices):
        return NOT_FOUND
    _point(handle, target._replace(place=place).handle)
    return OK


@device_call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
def _parent_handle(target: Target, handle: Any) -> int:
    if target.place is None:
        return BAD_ARGUMENT
    _point(handle, target._replace(place=None).handle)
    return OK
