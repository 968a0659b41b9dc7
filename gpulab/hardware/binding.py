"""The calls of NVML that gpulab makes, through pynvml, with one kind of error.

The only importer of pynvml beside the simulated machine, and imported only when a snapshot is
taken: pynvml costs twice a bare Python's start.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from gpulab.errors import MissingDependencyError
from gpulab.hardware.states import NvmlError

__all__ = ["Binding"]

_LIST_TRIES = 4
_ALL_LINKS = 2**32 - 1
_NVLINK = {"tx": 138, "rx": 139}
"""The fields of all data moved, in KiB (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_...)."""
_INSUFFICIENT_SIZE, _NO_FUNCTION, _OTHER_VERSION, _UNKNOWN = 7, 13, 25, 999
T = TypeVar("T")


class Binding:
    """NVML behind Python values. Each method raises NvmlError; a missing function is code 13."""

    def __init__(self) -> None:
        """Raises MissingDependencyError if pynvml is not the one of nvidia-ml-py."""
        try:
            import pynvml

            self._mismatch = pynvml.NVMLLibraryMismatchError
            self._failure = pynvml.NVMLError
        except (ImportError, AttributeError) as error:
            raise MissingDependencyError(
                f"The package nvidia-ml-py does not work here ({error}); run "
                "`pip uninstall pynvml nvidia-ml-py`, then `pip install nvidia-ml-py`."
            ) from error
        self._pynvml: Any = pynvml

    def _ask(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._pynvml, name)(*arguments)
        except self._failure as error:
            raise NvmlError(error.value) from None
        except self._mismatch:
            raise NvmlError(_OTHER_VERSION) from None
        except AttributeError:
            raise NvmlError(_NO_FUNCTION) from None
        except UnicodeDecodeError:
            raise NvmlError(_UNKNOWN) from None

    def _retried(self, ask: Callable[[], T]) -> T:
        """A list may grow between asking its size and its content."""
        for _ in range(_LIST_TRIES - 1):
            try:
                return ask()
            except NvmlError as error:
                if error.code != _INSUFFICIENT_SIZE:
                    raise
        return ask()

    def start(self) -> None:
        self._ask("nvmlInitWithFlags", 0)

    def stop(self) -> None:
        self._ask("nvmlShutdown")

    def count(self) -> int:
        return int(self._ask("nvmlDeviceGetCount"))

    def cuda_version(self) -> int:
        return int(self._ask("nvmlSystemGetCudaDriverVersion"))

    def driver_version(self) -> str:
        return str(self._ask("nvmlSystemGetDriverVersion"))

    def device(self, index: int) -> Any:
        """A handle. Never a null one: NVML would crash the process with it."""
        return self._handle("nvmlDeviceGetHandleByIndex", index)

    def mig_device(self, handle: Any, place: int) -> Any:
        """The handle of a slice; code 6 where there is none."""
        return self._handle("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)

    def _handle(self, name: str, *arguments: Any) -> Any:
        handle = self._ask(name, *arguments)
        if not handle:
            raise NvmlError(_UNKNOWN)
        return handle

    def text(self, name: str, handle: Any) -> str:
        return str(self._ask(name, handle))

    def number(self, name: str, handle: Any) -> int:
        return int(self._ask(name, handle))

    def energy(self, handle: Any) -> int:
        """Millijoules."""
        return int(self._ask("nvmlDeviceGetTotalEnergyConsumption", handle))

    def temperature(self, handle: Any) -> int:
        """Degrees Celsius, by the old call, which all drivers have, or by its successor."""
        try:
            value = int(self._ask("nvmlDeviceGetTemperature", handle, 0))
            return value - 2**32 if value >= 2**31 else value  # pynvml reads it unsigned
        except NvmlError as error:
            if error.code not in (3, _NO_FUNCTION):
                raise
        return int(self._ask("nvmlDeviceGetTemperatureV", handle, 0))

    def clock(self, handle: Any, kind: int) -> int:
        """MHz; `kind` 1 is the SMs', 2 the memory's."""
        return int(self._ask("nvmlDeviceGetClockInfo", handle, kind))

    def clock_reasons(self, handle: Any) -> int:
        """What holds the clocks down, as bits; by the new name, or the one that older drivers have."""
        try:
            return int(self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle))
        except NvmlError as error:
            if error.code != _NO_FUNCTION:
                raise
        return int(self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle))

    def pcie(self, handle: Any, counter: int) -> int:
        """KB/s over the 20 ms that the call takes; `counter` 0 is what the GPU sends, 1 what it receives."""
        return int(self._ask("nvmlDeviceGetPcieThroughput", handle, counter))

    def nvlink(self, handle: Any) -> dict[str, int]:
        """Bytes sent (tx) and received (rx) over all links since they came up; {} where there is no link."""
        values = self._fields(handle, _NVLINK.values())
        pairs = zip(_NVLINK, values, strict=False)
        return {way: int(value.value.ullVal) * 1024 for way, value in pairs if value.nvmlReturn == 0}

    def _fields(self, handle: Any, fields: Collection[int]) -> Any:
        """Not by pynvml's own function: some drivers write one entry past the count that they are told."""
        try:
            values = (self._pynvml.c_nvmlFieldValue_t * (len(fields) + 1))()
            call = self._pynvml._nvmlGetFunctionPointer("nvmlDeviceGetFieldValues")
        except self._failure as error:
            raise NvmlError(error.value) from None
        except (AttributeError, self._mismatch):
            raise NvmlError(_NO_FUNCTION) from None
        for value, field in zip(values, fields, strict=False):
            value.fieldId, value.scopeId = field, _ALL_LINKS
        code = call(handle, ctypes.c_int32(len(fields)), ctypes.byref(values))
        if code:
            raise NvmlError(int(code))
        return values

    def is_sliced(self, handle: Any) -> bool:
        """Whether MIG is on."""
        return bool(self._ask("nvmlDeviceGetMigMode", handle)[0] == 1)

    def rates(self, handle: Any) -> tuple[int, int]:
        """Utilization of GPU and memory in percent."""
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        return int(rates.gpu), int(rates.memory)

    def memory(self, handle: Any) -> tuple[int, int, int, int | None]:
        """Total, used, free and reserved bytes; the old call counts the reserve as used."""
        try:
            value = self._ask("nvmlDeviceGetMemoryInfo", handle, self._pynvml.nvmlMemory_v2)
            return value.total, value.used, value.free, value.reserved
        except NvmlError as error:
            if error.code not in (_NO_FUNCTION, _OTHER_VERSION):
                raise
        older = self._ask("nvmlDeviceGetMemoryInfo", handle)
        return older.total, older.used, older.free, None

    def processes(self, name: str, handle: Any) -> list[tuple[int, int | None]]:
        """Process ids and bytes, from a call of the second or third version."""
        entries = self._retried(lambda: self._ask(name, handle))
        return [(entry.pid, entry.usedGpuMemory) for entry in entries]

    def shares(self, handle: Any, since: int) -> list[tuple[int, int, int]]:
        """Process id, time and percent of the GPU of each sample after `since` (microseconds)."""
        samples = self._retried(lambda: self._ask("nvmlDeviceGetProcessUtilization", handle, since))
        return [(sample.pid, sample.timeStamp, sample.smUtil) for sample in samples]
