"""One GPU asked through NVML, value by value: each is None where the driver cannot or will not say.

Nothing here imports pynvml: the module is passed in by hardware.nvml, which loaded it.
"""

from __future__ import annotations

import time
from typing import Any

from gpulab.hardware.devices import Device, Memory, Process
from gpulab.hardware.owners import command_of, owner_of

__all__ = ["Reading"]

_UNINITIALIZED, _NOT_SUPPORTED, _NOT_FOUND, _TOO_SMALL, _NO_FUNCTION = 1, 3, 6, 7, 13
_LOST, _RESET, _WRONG_VERSION, _UNKNOWN = 15, 16, 25, 999
_MODES = {0: "default", 1: "exclusive_process", 2: "prohibited", 3: "exclusive_process"}
_MAX_PID = 2**22
_LIST_TRIES = 3
_WINDOW_SECONDS = 3.0


class Reading:
    """Everything that one GPU says for one snapshot; filled by a guarded thread, readable at any time."""

    def __init__(
        self, nvml: Any, index: int, *, full: bool, names_processes: bool, driver: str | None
    ) -> None:
        self.index = index
        self._nvml = nvml
        self._full = full
        self._names_processes = names_processes
        self._list_calls = ("_v2", "_v3") if _has_wide_processes(driver) else ("_v3", "_v2")
        self._codes: dict[str, int] = {}
        self._seen: set[int] = set()
        self.needs_init = False
        self.device = Device(index, sampled_at=time.time())
        self.slices: tuple[Device, ...] = ()

    def run(self) -> None:
        """Ask all of it. Raises nothing that a driver could cause."""
        handle = self._ask("nvmlDeviceGetHandleByIndex", self.device.index)
        if not handle:  # never pass a null handle on: NVML crashes the process
            self._fail("nvmlDeviceGetHandleByIndex")
            return
        self._set(uuid=self._ask("nvmlDeviceGetUUID", handle), name=self._ask("nvmlDeviceGetName", handle))
        sliced = self._ask("nvmlDeviceGetMigMode", handle)
        self._set(memory=self._memory(handle, may_share=not (sliced and sliced[0])))
        self._utilization(handle)
        self._set(compute_mode=_MODES.get(self._ask("nvmlDeviceGetComputeMode", handle)))
        if self._full:
            self._sensors(handle)
        self._set(processes=self._processes(handle), sampled_at=time.time())
        if sliced and sliced[0]:
            self.slices = self._slices(handle)
        if self.device.uuid is None:
            self._fail("nvmlDeviceGetUUID")
        self._judge()

    def _set(self, **values: Any) -> None:
        self.device = self.device._replace(**values)

    def _ask(self, call: str, *arguments: Any, **options: Any) -> Any:
        """The call's value, or None and its error code in `_codes`."""
        self._codes.pop(call, None)
        try:
            return getattr(self._nvml, call)(*arguments, **options)
        except self._nvml.NVMLError as error:
            self._codes[call] = error.value
        except (getattr(self._nvml, "NVMLLibraryMismatchError", AttributeError), AttributeError):
            self._codes[call] = _NO_FUNCTION
        except ValueError:  # a name that is no text
            self._codes[call] = _UNKNOWN
        self._seen.add(self._codes[call])
        return None

    def _fail(self, call: str) -> None:
        self._judge()
        if self.device.state == "ok":
            code = self._codes.get(call)
            reason = "nothing" if code is None else f"error {code} ({self._nvml.NVMLError(code)})"
            self._set(
                state="error",
                message=f"NVML answers {reason} for GPU {self.device.index}; "
                "reset that GPU with `nvidia-smi -r`, or reboot.",
            )
        self.needs_init = self.needs_init or self._codes.get(call) == _UNKNOWN

    def _judge(self) -> None:
        """A GPU that is gone says so with any of its calls."""
        self.needs_init = _UNINITIALIZED in self._seen
        if _LOST in self._seen:
            self._set(
                state="lost",
                message=f"GPU {self.index} is lost: it has fallen off the bus (error 15); reboot.",
            )
        elif _RESET in self._seen:
            self._set(
                state="error",
                message=f"GPU {self.index} must be reset (error 16); end its programs, then `nvidia-smi -r`.",
            )

    def _memory(self, handle: Any, *, may_share: bool) -> Memory:
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        info = self._ask("nvmlDeviceGetMemoryInfo", handle, version=version) if version else None
        if info is None and self._codes.get("nvmlDeviceGetMemoryInfo", _NO_FUNCTION) in (
            _NO_FUNCTION,
            _WRONG_VERSION,
        ):
            info = self._ask("nvmlDeviceGetMemoryInfo", handle)
        if info is None:
            unsupported = self._codes.get("nvmlDeviceGetMemoryInfo") == _NOT_SUPPORTED
            return _host_memory() if unsupported and may_share else Memory()
        total = _bytes(info.total)
        return Memory(
            total_bytes=total,
            used_bytes=_bytes(info.used, total),
            free_bytes=_bytes(info.free, total),
            reserved_bytes=_bytes(getattr(info, "reserved", None), total),
        )

    def _utilization(self, handle: Any) -> None:
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        if rates is not None:
            self._set(gpu_percent=_percent(rates.gpu), memory_percent=_percent(rates.memory))

    def _sensors(self, handle: Any) -> None:
        self._set(
            temperature_celsius=self._temperature(handle),
            power_watts=_thousandth(self._ask("nvmlDeviceGetPowerUsage", handle), 1e4),
            power_limit_watts=_thousandth(self._ask("nvmlDeviceGetEnforcedPowerLimit", handle), 1e4),
            energy_joules=_thousandth(self._ask("nvmlDeviceGetTotalEnergyConsumption", handle), 1e15),
        )

    def _temperature(self, handle: Any) -> float | None:
        celsius = self._ask("nvmlDeviceGetTemperature", handle, 0)
        if celsius is None:
            celsius = self._ask("nvmlDeviceGetTemperatureV", handle, 0)
        return float(celsius) if celsius is not None and -60 < celsius < 200 else None

    def _processes(self, handle: Any, *, sliced: bool = False) -> tuple[Process, ...] | None:
        compute = self._list("nvmlDeviceGetComputeRunningProcesses", handle)
        if compute is None or not self._full:
            return compute if compute is None else self._describe(compute, {}, "compute")
        shares = {} if sliced else self._shares(handle)
        found = self._describe(compute, shares, "compute")
        graphics = self._list("nvmlDeviceGetGraphicsRunningProcesses", handle) or []
        known = {process.pid for process in found}
        return found + tuple(p for p in self._describe(graphics, shares, "graphics") if p.pid not in known)

    def _list(self, call: str, handle: Any) -> list[Any] | None:
        """The entries with a possible pid; None if there are others only, or no answer."""
        entries = None
        for suffix in self._list_calls:
            for _ in range(_LIST_TRIES):  # the list may grow between asking its size and its content
                entries = self._ask(call + suffix, handle)
                if entries is not None or self._codes.get(call + suffix) != _TOO_SMALL:
                    break
            if entries is not None or self._codes.get(call + suffix) != _NO_FUNCTION:
                break
        if entries is None:
            return [] if self._codes.get(call + suffix) == _NOT_FOUND else None
        possible = [entry for entry in entries if 0 < entry.pid <= _MAX_PID]
        return possible if possible or not entries else None

    def _describe(self, entries: list[Any], shares: dict[int, float], kind: str) -> tuple[Process, ...]:
        return tuple(
            Process(
                pid=entry.pid,
                user=owner_of(entry.pid) if self._names_processes else None,
                command=command_of(entry.pid) if self._names_processes else None,
                memory_bytes=_bytes(entry.usedGpuMemory, self.device.memory.total_bytes),
                gpu_percent=shares.get(entry.pid),
                type=kind,
            )
            for entry in entries
        )

    def _shares(self, handle: Any) -> dict[int, float]:
        """Each process's share of the GPU's time, from its newest sample of the last seconds."""
        since = int((time.time() - _WINDOW_SECONDS) * 1e6)
        samples = self._ask("nvmlDeviceGetProcessUtilization", handle, since) or []
        newest = {sample.pid: sample for sample in sorted(samples, key=lambda sample: sample.timeStamp)}
        shares = {pid: _percent(sample.smUtil) for pid, sample in newest.items()}
        return {pid: share for pid, share in shares.items() if share is not None}

    def _slices(self, handle: Any) -> tuple[Device, ...]:
        count = self._ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        handles = (self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place) for place in range(count))
        return tuple(self._slice(part) for part in handles if part)

    def _slice(self, handle: Any) -> Device:
        return Device(
            index=self.device.index,
            uuid=self._ask("nvmlDeviceGetUUID", handle),
            name=self._ask("nvmlDeviceGetName", handle),
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


def _percent(value: int) -> float | None:
    return float(value) if 0 <= value <= 100 else None


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
