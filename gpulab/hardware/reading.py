"""One GPU asked through NVML, value by value: each is None where the driver cannot or will not say."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from gpulab.hardware.binding import Binding
from gpulab.hardware.devices import Device, Memory, Process
from gpulab.hardware.owners import command_of, owner_of
from gpulab.hardware.states import NvmlError, denied

__all__ = ["Reading"]

_UNINITIALIZED, _NOT_SUPPORTED, _DENIED = 1, 3, 4
_NO_FUNCTION, _LOST, _RESET, _UNKNOWN = 13, 15, 16, 999
_MODES = {0: "default", 1: "exclusive_process", 2: "prohibited", 3: "exclusive_process"}
_INTEGRATED = re.compile(r"\b(GB10|Thor|Orin|Xavier|Tegra)\b")
"""GPUs without memory of their own; from any other, "not supported" leaves its memory unknown."""
_MAX_PID = 2**22
_WINDOW_SECONDS = 3.0
T = TypeVar("T")


class Reading:
    """Everything that one GPU says for one snapshot; filled by a guarded thread, readable at any time."""

    def __init__(
        self, nvml: Binding, index: int, *, full: bool, names_processes: bool, driver: str | None
    ) -> None:
        self.index = index
        self._nvml = nvml
        self._full = full
        self._names_processes = names_processes
        self._list_calls = ("_v2",) if _has_wide_processes(driver) else ("_v3", "_v2")
        self._code = 0
        self._seen: set[int] = set()
        self.needs_init = False
        self.device = Device(index, sampled_at=time.time())
        self.slices: tuple[Device, ...] = ()

    def run(self) -> None:
        """Ask all of it. Raises nothing that a driver could cause."""
        nvml = self._nvml
        handle = self._ask(nvml.device, self.index)
        if handle is None:
            self._fail()
            return
        uuid = self._ask(nvml.text, "nvmlDeviceGetUUID", handle)
        if not uuid:
            self._fail()
            return
        self._set(uuid=uuid, name=self._ask(nvml.text, "nvmlDeviceGetName", handle))
        sliced = bool(self._ask(nvml.is_sliced, handle))
        shares = not sliced and bool(_INTEGRATED.search(self.device.name or ""))
        self._set(memory=self._memory(handle, may_share=shares))
        gpu, memory = self._ask(nvml.rates, handle) or (None, None)
        self._set(gpu_percent=_percent(gpu), memory_percent=_percent(memory))
        mode = self._ask(nvml.number, "nvmlDeviceGetComputeMode", handle)
        self._set(compute_mode=None if mode is None else _MODES.get(mode))
        if self._full:
            self._sensors(handle)
        self._set(processes=self._processes(handle, sliced=sliced), sampled_at=time.time())
        if sliced:
            self.slices = self._slices(handle)
        self._judge()

    def _set(self, **values: Any) -> None:
        self.device = self.device._replace(**values)

    def _ask(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """What the call says; None if it fails, with the reason in `_code`."""
        self._code = 0
        try:
            return call(*arguments)
        except NvmlError as error:
            self._code = error.code
            self._seen.add(error.code)
            return None

    def _fail(self) -> None:
        """The GPU cannot even be named."""
        self._judge()
        if self._code == _DENIED:
            self._set(state="error", message=denied(self.index))
        elif self.device.state == "ok":
            reason = str(NvmlError(self._code)) if self._code else "nothing"
            self._set(
                state="error",
                message=f"NVML answers {reason} for GPU {self.index}; "
                "reset that GPU with `nvidia-smi -r`, or reboot.",
            )
        self.needs_init = self.needs_init or self._code == _UNKNOWN

    def _judge(self) -> None:
        """A GPU that is gone says so with any of its calls."""
        self.needs_init = _UNINITIALIZED in self._seen
        if _LOST in self._seen:
            message = f"GPU {self.index} is lost: it has fallen off the bus (error 15); reboot."
            self._set(state="lost", message=message)
        elif _RESET in self._seen:
            message = f"GPU {self.index} must be reset (error 16); end its programs, then `nvidia-smi -r`."
            self._set(state="error", message=message)

    def _memory(self, handle: Any, *, may_share: bool) -> Memory:
        answer = self._ask(self._nvml.memory, handle)
        if answer is None:
            return _host_memory() if may_share and self._code == _NOT_SUPPORTED else Memory()
        total = _bytes(answer[0])
        used, free, reserved = (_bytes(value, total) for value in answer[1:])
        return Memory(total, used, free, reserved)

    def _sensors(self, handle: Any) -> None:
        nvml = self._nvml
        celsius = self._ask(nvml.temperature, handle)
        power = self._ask(nvml.number, "nvmlDeviceGetPowerUsage", handle)
        limit = self._ask(nvml.number, "nvmlDeviceGetEnforcedPowerLimit", handle)
        self._set(
            temperature_celsius=float(celsius) if celsius is not None and -60 < celsius < 200 else None,
            power_watts=_thousandth(power, 1e4),
            power_limit_watts=_thousandth(limit, 1e4),
            energy_joules=_thousandth(self._ask(nvml.energy, handle), 1e15),
        )

    def _processes(self, handle: Any, *, sliced: bool) -> tuple[Process, ...] | None:
        compute = self._list("nvmlDeviceGetComputeRunningProcesses", handle)
        if compute is None:
            return None
        shares = {} if sliced or not self._full else self._shares(handle)
        found = self._describe(compute, shares, "compute")
        if not self._full and not self.device._replace(processes=found).unlisted_bytes:
            return found  # else a desktop may hold the memory, and that is nobody who computes
        graphics = self._list("nvmlDeviceGetGraphicsRunningProcesses", handle) or []
        known = {process.pid for process in found}
        return found + tuple(p for p in self._describe(graphics, shares, "graphics") if p.pid not in known)

    def _list(self, call: str, handle: Any) -> list[tuple[int, int | None]] | None:
        """The entries with a possible pid; None if there are others only, or no answer."""
        entries = None
        for suffix in self._list_calls:
            entries = self._ask(self._nvml.processes, call + suffix, handle)
            if self._code != _NO_FUNCTION:
                break
        possible = [entry for entry in entries or () if 0 < entry[0] <= _MAX_PID]
        return None if entries is None or (entries and not possible) else possible

    def _describe(
        self, entries: list[tuple[int, int | None]], shares: dict[int, float], kind: str
    ) -> tuple[Process, ...]:
        return tuple(
            Process(
                pid=pid,
                user=owner_of(pid) if self._names_processes else None,
                command=command_of(pid) if self._names_processes else None,
                memory_bytes=_bytes(memory, self.device.memory.total_bytes),
                gpu_percent=shares.get(pid),
                type=kind,
            )
            for pid, memory in entries
        )

    def _shares(self, handle: Any) -> dict[int, float]:
        """Each process's share of the GPU's time, from its newest sample of the last seconds."""
        since = int((time.time() - _WINDOW_SECONDS) * 1e6)
        samples = self._ask(self._nvml.shares, handle, since) or []
        newest = {pid: _percent(gpu) for pid, _, gpu in sorted(samples, key=lambda sample: sample[1])}
        return {pid: share for pid, share in newest.items() if share is not None}

    def _slices(self, handle: Any) -> tuple[Device, ...]:
        count = self._ask(self._nvml.number, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        handles = (self._ask(self._nvml.mig_device, handle, place) for place in range(count))
        return tuple(self._slice(part) for part in handles if part is not None)

    def _slice(self, handle: Any) -> Device:
        return Device(
            index=self.index,
            uuid=self._ask(self._nvml.text, "nvmlDeviceGetUUID", handle),
            name=self._ask(self._nvml.text, "nvmlDeviceGetName", handle),
            kind="mig",
            parent_uuid=self.device.uuid,
            sampled_at=time.time(),
            memory=self._memory(handle, may_share=False),
            compute_mode=self.device.compute_mode,
            processes=self._processes(handle, sliced=True),
        )


def _has_wide_processes(driver: str | None) -> bool:
    """Drivers 535.43 to 535.97 write 32 bytes a process where the third call's header says 24."""
    major, minor = [*(driver or "").split("."), "", ""][:2]
    return major == "535" and minor.isdecimal() and 43 <= int(minor) < 98


def _bytes(value: int | None, most: int | None = None) -> int | None:
    """None for the sentinel of "not available", and for more than there is."""
    if value is None or value >= 2**63 or (most is not None and value > most):
        return None
    return int(value)


def _percent(value: int | None) -> float | None:
    return float(value) if value is not None and 0 <= value <= 100 else None


def _thousandth(value: int | None, most: float) -> float | None:
    return value / 1000 if value is not None and value / 1000 < most else None


def _host_memory() -> Memory:
    """Of a GPU that shares its memory with the processor: what the kernel says of it."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        total, free = (int(lines[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, KeyError, IndexError):
        return Memory(shared_with_host=True)
    return Memory(total_bytes=total, used_bytes=total - free, free_bytes=free, shared_with_host=True)
