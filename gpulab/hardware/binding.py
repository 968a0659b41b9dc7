"""The calls of NVIDIA's management library that gpulab uses, bound by ctypes.

Not through pynvml: importing its thousands of names costs more than everything else that `gpulab run`
does, and several distributions fight over that module name. The C interface itself is stable.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from gpulab.hardware.states import NvmlError

__all__ = ["Binding"]

_TEXT_BYTES = 96
_MEMORY_V2 = 0x02000028
_TEMPERATURE_V1 = 0x0100000C
_LIST_TRIES = 4


class _MemoryV1(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _MemoryV2(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        *((n, ctypes.c_ulonglong) for n in ("total", "reserved", "free", "used")),
    )


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Temperature(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), ("sensorType", ctypes.c_uint), ("temperature", ctypes.c_int))


class _Process(ctypes.Structure):
    """The same in the second and the third version of the call."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Share(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("time", ctypes.c_ulonglong),
        *((name, ctypes.c_uint) for name in ("gpu", "memory", "encoder", "decoder")),
    )


class Binding:
    """NVML behind Python values. Each method raises NvmlError; a missing function is code 13.

    `library` is a loaded libnvidia-ml, or an object that stands in its place.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._functions: dict[str, Any] = {}

    @classmethod
    def of_this_machine(cls) -> Binding:
        """Load NVIDIA's library. Raises NvmlError(12) if there is none."""
        names = ("nvml.dll",) if sys.platform == "win32" else ("libnvidia-ml.so.1", "libnvidia-ml.so")
        for name in names:
            try:
                return cls(ctypes.CDLL(name))
            except OSError:
                continue
        raise NvmlError(12)

    def call(self, name: str, *arguments: Any) -> None:
        """The C function of this name."""
        function = self._functions.get(name)
        if function is None:
            try:
                function = self._functions[name] = getattr(self._library, name)
            except AttributeError:
                raise NvmlError(13) from None
        code = function(*arguments)
        if code:
            raise NvmlError(code)

    def start(self) -> None:
        self.call("nvmlInitWithFlags", ctypes.c_uint(0))

    def stop(self) -> None:
        self.call("nvmlShutdown")

    def count(self) -> int:
        value = ctypes.c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(value))
        return value.value

    def cuda_version(self) -> int:
        value = ctypes.c_int()
        self.call("nvmlSystemGetCudaDriverVersion", ctypes.byref(value))
        return value.value

    def driver_version(self) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self.call("nvmlSystemGetDriverVersion", buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode(errors="replace")

    def device(self, index: int) -> Any:
        """A handle. Never a null one: NVML would crash the process with it."""
        return self._handle("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index))

    def mig_device(self, handle: Any, place: int) -> Any:
        """The handle of a slice; code 6 where there is none."""
        return self._handle("nvmlDeviceGetMigDeviceHandleByIndex", handle, ctypes.c_uint(place))

    def _handle(self, name: str, *arguments: Any) -> Any:
        handle = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        if not handle.value:
            raise NvmlError(999)
        return handle

    def text(self, name: str, handle: Any) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self.call(name, handle, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode(errors="replace")

    def number(self, name: str, handle: Any) -> int:
        value = ctypes.c_uint()
        self.call(name, handle, ctypes.byref(value))
        return value.value

    def energy(self, handle: Any) -> int:
        """Millijoules."""
        value = ctypes.c_ulonglong()
        self.call("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(value))
        return value.value

    def temperature(self, handle: Any) -> int:
        """Degrees Celsius, by the old call, which all drivers have, or by its successor."""
        try:
            value = ctypes.c_uint()
            self.call("nvmlDeviceGetTemperature", handle, ctypes.c_uint(0), ctypes.byref(value))
            return ctypes.c_int(value.value).value
        except NvmlError as error:
            if error.code not in (3, 13):
                raise
        reading = _Temperature(version=_TEMPERATURE_V1)
        self.call("nvmlDeviceGetTemperatureV", handle, ctypes.byref(reading))
        return int(reading.temperature)

    def is_sliced(self, handle: Any) -> bool:
        """Whether MIG is on."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        self.call("nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
        return current.value == 1

    def rates(self, handle: Any) -> tuple[int, int]:
        """Utilization of GPU and memory in percent."""
        value = _Rates()
        self.call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(value))
        return value.gpu, value.memory

    def memory(self, handle: Any) -> tuple[int, int, int, int | None]:
        """Total, used, free and reserved bytes; the old call counts the reserve as used."""
        try:
            value = _MemoryV2(version=_MEMORY_V2)
            self.call("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(value))
            return value.total, value.used, value.free, value.reserved
        except NvmlError as error:
            if error.code not in (13, 25):
                raise
        older = _MemoryV1()
        self.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(older))
        return older.total, older.used, older.free, None

    def processes(self, name: str, handle: Any) -> list[tuple[int, int]]:
        """Process ids and bytes, from a call of the second or third version."""
        count = ctypes.c_uint(0)
        entries: Any = None
        for _ in range(_LIST_TRIES):  # the list may grow between asking its size and its content
            try:
                self.call(name, handle, ctypes.byref(count), entries)
                return [(entries[i].pid, entries[i].memory) for i in range(count.value)] if entries else []
            except NvmlError as error:
                if error.code != 7:
                    raise
            count.value = 2 * count.value + 5
            entries = (_Process * count.value)()
        raise NvmlError(7)

    def shares(self, handle: Any, since: int) -> list[tuple[int, int, int]]:
        """Process id, time and percent of the GPU of each sample after `since` (microseconds)."""
        count = ctypes.c_uint(0)
        samples: Any = None
        for _ in range(_LIST_TRIES):
            try:
                self.call(
                    "nvmlDeviceGetProcessUtilization",
                    handle,
                    samples,
                    ctypes.byref(count),
                    ctypes.c_ulonglong(since),
                )
                found = range(count.value if samples else 0)
                return [(samples[i].pid, samples[i].time, samples[i].gpu) for i in found]
            except NvmlError as error:
                if error.code != 7:
                    raise
            count.value += 5
            samples = (_Share * count.value)()
        raise NvmlError(7)
