"""What a simulated GPU answers about the processes on it, in the layouts of several drivers."""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable
from typing import Any

from gpulab.hardware.simulation.machine import SimulatedProcess
from gpulab.hardware.simulation.registry import NOT_FOUND, NOT_SUPPORTED, OK, TOO_SMALL, device_call, out
from gpulab.hardware.simulation.target import Target

__all__ = ["has_wide_processes"]

_NO_INSTANCE = 2**32 - 1
_V1, _V2, _WIDE, _SAMPLE = "<I4xQ", "<I4xQII", "<I4xQIIQ", "<I4xQIIII"


def has_wide_processes(driver: str) -> bool:
    """Drivers 535.43 to 535.97 wrote entries of 32 bytes where their header said 24."""
    major, _, minor = driver.partition(".")
    minor = minor.partition(".")[0]
    return major == "535" and minor.isdecimal() and 43 <= int(minor) < 98


def _entry(layout: str, process: SimulatedProcess) -> bytes:
    instance, compute = (_NO_INSTANCE,) * 2 if process.slice is None else (process.slice + 1, 0)
    values = (process.pid % 2**32, process.memory, instance, compute, 0)
    return struct.pack(layout, *values[: {_V1: 2, _V2: 4, _WIDE: 5}[layout]])


def _list_call(kind: str | None, version: int) -> Callable[..., int]:
    def answer(target: Target, count: Any, entries: Any) -> int:
        wide = version == 3 and has_wide_processes(target.machine.driver)
        layout = _V1 if version == 1 else _WIDE if wide else _V2
        listed = target.processes(kind) if kind else []
        room, out(count).value = out(count).value, len(listed)
        if not listed:
            return OK
        if entries is None or room < len(listed):
            return TOO_SMALL
        data = b"".join(_entry(layout, process) for process in listed)
        ctypes.memmove(entries, data, min(len(data), ctypes.sizeof(entries)))
        return OK

    return answer


for _kind, _type in (("Compute", "compute"), ("Graphics", "graphics"), ("MPSCompute", None)):
    for _version in (1, 2, 3):
        _suffix = "" if _version == 1 else f"_v{_version}"
        device_call(f"nvmlDeviceGet{_kind}RunningProcesses{_suffix}")(_list_call(_type, _version))


@device_call("nvmlDeviceGetProcessUtilization")
def _process_utilization(target: Target, samples: Any, count: Any, _since: Any) -> int:
    if target.device.slices:
        return NOT_SUPPORTED
    busy = [process for process in target.processes() if process.gpu_percent is not None]
    if not busy:
        return NOT_FOUND
    room, out(count).value = out(count).value, len(busy)
    if samples is None or room < len(busy):
        return TOO_SMALL
    now = time.time_ns() // 1000
    data = b"".join(
        struct.pack(_SAMPLE, p.pid % 2**32, now, round(p.gpu_percent or 0), 0, 0, 0) for p in busy
    )
    ctypes.memmove(samples, data, len(data))
    return OK


@device_call("nvmlDeviceGetRunningProcessDetailList")
def _detail_list(_target: Target, _details: Any) -> int:
    """It is there, so that clients know the official layout of the others."""
    return NOT_SUPPORTED
