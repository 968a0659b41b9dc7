"""Asking one GPU through NVML: what fails is None with its code kept, and what that says of the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from gpulab.hardware.binding import Binding
from gpulab.hardware.devices import Device, Memory, Process
from gpulab.hardware.owners import command_of, identity_of, owner_of, uid_of
from gpulab.hardware.plausible import host_memory, megahertz, percent, rate, reasons, size, thousandth
from gpulab.hardware.states import NvmlError

__all__ = ["DENIED", "UNKNOWN", "Asking", "Terms"]

UNINITIALIZED, NOT_SUPPORTED, DENIED = 1, 3, 4
NO_FUNCTION, LOST, RESET, UNKNOWN = 13, 15, 16, 999
_MAX_PID = 2**22
_WINDOW_SECONDS = 3.0
_SM, _MEMORY = 1, 2
_TX, _RX = 0, 1
T = TypeVar("T")


class Terms:
    """What holds for every GPU of one look."""

    def __init__(self, nvml: Binding, *, names_processes: bool, driver: str | None) -> None:
        self.nvml = nvml
        self.names_processes = names_processes
        """Whether a process id that NVML tells means the same process here."""
        self.list_calls = ("_v2",) if _has_wide_processes(driver) else ("_v3", "_v2")


class Asking:
    """One GPU in one look; filled by a guarded thread, readable at any time."""

    def __init__(self, terms: Terms, device: Device) -> None:
        self.terms = terms
        self.index = device.index
        self.device = device
        self.slices: tuple[Device, ...] = ()
        self.handle: Any = None
        self.slice_handles: tuple[Any, ...] = ()
        self.needs_init = False
        self.code = 0
        self.seen: set[int] = set()
        self.unknowns = 0
        """How many calls failed with the code that says least."""
        self.identities: dict[int, tuple[int, int]] = {}
        """Of its processes, as far as they are ours to see."""

    @property
    def is_stale(self) -> bool:
        """Whether handles may no longer hold, so that the next look must be a whole one."""
        return not self.seen.isdisjoint((UNINITIALIZED, LOST, RESET))

    def run(self) -> None:
        """Ask, and fill `device` and `slices`. Raises nothing that a driver could cause."""
        raise NotImplementedError

    def set(self, **values: Any) -> None:
        """Take over values of the device."""
        self.device = self.device._replace(**values)

    def ask(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """What the call says; None if it fails, with the reason in `code`."""
        self.code = 0
        try:
            return call(*arguments)
        except NvmlError as error:
            self.code = error.code
            self.seen.add(error.code)
            self.unknowns += error.code == UNKNOWN
            return None

    def judge(self) -> None:
        """A GPU that is gone says so with any of its calls."""
        self.needs_init = UNINITIALIZED in self.seen
        if LOST in self.seen:
            message = f"GPU {self.index} is lost: it has fallen off the bus (error 15); reboot."
            self.set(state="lost", message=message)
        elif RESET in self.seen:
            message = f"GPU {self.index} must be reset (error 16); end its programs, then `nvidia-smi -r`."
            self.set(state="error", message=message)

    def memory(self, handle: Any, *, may_share: bool) -> Memory:
        answer = self.ask(self.terms.nvml.memory, handle)
        if answer is None:
            return host_memory() if may_share and self.code == NOT_SUPPORTED else Memory()
        total = size(answer[0]) or None  # no GPU has none
        if total is None:
            return host_memory() if may_share else Memory()
        used, free, reserved = (size(value, total) for value in answer[1:])
        return Memory(total, used, free, reserved)

    def load(self, handle: Any) -> dict[str, Any]:
        """What moves from second to second, less memory and processes."""
        nvml = self.terms.nvml
        gpu, memory = self.ask(nvml.rates, handle) or (None, None)
        return {
            "gpu_percent": percent(gpu),
            "memory_percent": percent(memory),
            "power_watts": thousandth(self.ask(nvml.number, "nvmlDeviceGetPowerUsage", handle), 1e4),
            "energy_joules": thousandth(self.ask(nvml.energy, handle), 1e15),
        }

    def details(self, handle: Any) -> dict[str, Any]:
        """Temperature, limit of power, clocks, and what holds them down."""
        nvml = self.terms.nvml
        celsius = self.ask(nvml.temperature, handle)
        return {
            "temperature_celsius": float(celsius) if celsius is not None and -60 < celsius < 200 else None,
            "power_limit_watts": thousandth(
                self.ask(nvml.number, "nvmlDeviceGetEnforcedPowerLimit", handle), 1e4
            ),
            "sm_clock_mhz": megahertz(self.ask(nvml.clock, handle, _SM)),
            "memory_clock_mhz": megahertz(self.ask(nvml.clock, handle, _MEMORY)),
            "throttle_reasons": reasons(self.ask(nvml.clock_reasons, handle)),
            "detailed_at": time.time(),
        }

    def links(self, handle: Any, before: dict[str, tuple[float, int]]) -> dict[str, Any]:
        """PCIe over the last 20 ms, NVLink since the look before, whose counters `before` holds and gets."""
        nvml = self.terms.nvml
        found: dict[str, Any] = {}
        for way, counter in (("rx", _RX), ("tx", _TX)):
            kilobytes = self.ask(nvml.pcie, handle, counter)
            found[f"pcie_{way}_bytes_per_second"] = rate(None if kilobytes is None else kilobytes * 1000)
        moved = self.ask(nvml.nvlink, handle) or {}
        now = time.monotonic()
        for way in ("rx", "tx"):
            found[f"nvlink_{way}_bytes_per_second"] = _speed(now, moved.get(way), before.get(way))
        before.clear()
        before.update({way: (now, total) for way, total in moved.items()})
        return found

    def list(self, call: str, handle: Any) -> list[tuple[int, int | None]] | None:
        """The entries with a possible pid; None if there are others only, or no answer."""
        entries = None
        for suffix in self.terms.list_calls:
            entries = self.ask(self.terms.nvml.processes, call + suffix, handle)
            if self.code != NO_FUNCTION:
                break
        possible = [entry for entry in entries or () if 0 < entry[0] <= _MAX_PID]
        return None if entries is None or (entries and not possible) else possible

    def shares(self, handle: Any) -> dict[int, float]:
        """Each process's share of the GPU's time, from its newest sample of the last seconds."""
        since = int((time.time() - _WINDOW_SECONDS) * 1e6)
        samples = self.ask(self.terms.nvml.shares, handle, since) or []
        newest = {pid: percent(gpu) for pid, _, gpu in sorted(samples, key=lambda sample: sample[1])}
        return {pid: share for pid, share in newest.items() if share is not None}

    def process(self, pid: int, memory: int | None, kind: str) -> Process:
        """A process by its id, and by what /proc says of it where that is the same process."""
        held = size(memory, self.device.memory.total_bytes)
        if not self.terms.names_processes:
            return Process(pid, memory_bytes=held, type=kind)
        self.identify(pid)
        return Process(pid, owner_of(pid), command_of(pid), held, type=kind, uid=uid_of(pid))

    def identify(self, pid: int) -> tuple[int, int] | None:
        """What tells a process from a later one with its id; None if it is not ours to see."""
        found = identity_of(pid) if self.terms.names_processes else None
        if found is not None:
            self.identities[pid] = found
        return found


def _speed(now: float, total: int | None, before: tuple[float, int] | None) -> float | None:
    if total is None or before is None or now <= before[0]:
        return None
    return rate((total - before[1]) / (now - before[0]))


def _has_wide_processes(driver: str | None) -> bool:
    """Drivers 535.43 to 535.97 write 32 bytes a process where the third call's header says 24."""
    major, minor = [*(driver or "").split("."), "", ""][:2]
    return major == "535" and minor.isdecimal() and 43 <= int(minor) < 98
