"""What a workload and its backends are, and where they are found. Nothing heavy is imported here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gpulab.compare.results.records import Parity
from gpulab.errors import RequestError

if TYPE_CHECKING:
    import numpy as np

    Arrays = dict[str, np.ndarray[Any, Any]]

__all__ = ["Backend", "CupyBackend", "Parameters", "Workload", "find_workload", "workload_names"]

Parameters = Mapping[str, float]

_NO_DEVICE = 100  # cudaErrorNoDevice

_HOME = {"dbscan": "gpulab.compare.workloads.dbscan"}


class Backend:
    """One way to do the work. All but `missing` is called in the worker process only.

    The defaults are those of a CPU library: arrays go in and come out as they are.
    """

    name: str
    title: str
    """As people read it, with the algorithm; threads are told apart by `threads`."""
    side: Literal["cpu", "gpu"] = "cpu"
    library: str
    remedy: str
    """What to do if the library is not installed."""
    modules: tuple[str, ...]
    """Imported by `start`, in this order; the time that takes is part of the first call."""

    def missing(self) -> str | None:
        """Why this backend cannot be started here, found without importing anything; None if it can."""
        from importlib.util import find_spec

        absent = [name for name in self.modules if find_spec(name.partition(".")[0]) is None]
        return f"{absent[0].partition('.')[0]} is not installed; {self.remedy}" if absent else None

    def start(self) -> None:
        """Import what is needed."""
        for name in self.modules:
            importlib.import_module(name)

    def unusable(self) -> str | None:
        """Why the imported library cannot compute here, or None. That an import succeeded proves nothing."""
        return None

    def threads(self) -> int | None:
        """How many threads `compute` uses; None where that means nothing."""
        return None

    def gpu_uuid(self) -> str | None:
        """The UUID of the GPU that `compute` uses, in hexadecimal digits; None if it cannot be told.

        It may be its beginning only: see `gpulab.compare.conditions.strangers.used_device`.
        """
        return None

    def facts(self) -> dict[str, str]:
        """What a reader must know to judge the figures: device, memory resource."""
        return {}

    def transfer_in(self, arrays: Arrays) -> Any:
        """Bring the data where `compute` needs it."""
        return arrays

    def compute(self, inputs: Any, parameters: Parameters) -> Any:
        """The work itself."""
        raise NotImplementedError

    def transfer_out(self, outputs: Any) -> Arrays:
        """Bring the results back as NumPy arrays."""
        return dict(outputs)

    def synchronize(self) -> None:
        """Wait until nothing of ours runs on the device any more."""

    def placement(self, outputs: Any) -> str | None:  # noqa: ARG002  the CPU side has nothing to prove
        """Why it is not proved that `outputs` came from the GPU; None if it is, or on the CPU side."""
        return None


class CupyBackend(Backend):
    """A GPU library whose results are CuPy arrays."""

    side = "gpu"
    remedy = "install the RAPIDS libraries with: pip install 'gpulab[rapids]'"

    def unusable(self) -> str | None:
        import cupy

        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status != _NO_DEVICE:
                return f"CUDA cannot start ({error}); `gpulab doctor` names the remedy"
            count = 0
        return None if count else "CUDA sees no GPU in this process; use a GPU kernel or `gpulab run`"

    def gpu_uuid(self) -> str | None:
        import cupy

        uuid = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id).get("uuid")
        # CuPy may hand out the bytes as a C string, which a zero byte ends and a missing one prolongs
        return uuid[:16].hex() if isinstance(uuid, bytes) else None

    def facts(self) -> dict[str, str]:
        import cupy
        import rmm

        properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
        name = properties["name"]
        return {
            "device": name.decode() if isinstance(name, bytes) else str(name),
            "memory_resource": type(rmm.mr.get_current_device_resource()).__name__,
        }

    def synchronize(self) -> None:
        """The whole device: cuML computes on streams of its own, which the current stream's events miss."""
        import cupy

        cupy.cuda.Device().synchronize()

    def transfer_out(self, outputs: Any) -> Arrays:
        import cupy

        return {name: cupy.asnumpy(value) for name, value in outputs.items()}

    def placement(self, outputs: Any) -> str | None:
        from gpulab.compare.placement import not_on_device

        return not_on_device(outputs)


class Workload(Protocol):
    """Work that several backends can do on the same data, with a check that they did the same."""

    name: str
    title: str
    teaches: str
    """One sentence: what a reader learns from comparing it."""
    unit: str
    """What `size` counts: points, rows."""
    sizes: tuple[int, ...]
    pilot_size: int
    """Small enough that its first call is all start-up cost: import, context, compilation."""
    backends: tuple[Backend, ...]

    def data_bytes(self, size: int) -> int:
        """Estimated peak while the data are made, before they are."""
        ...

    def make_data(self, size: int, seed: int) -> Arrays:
        """The data, the same for every backend."""
        ...

    def parameters(self, size: int) -> dict[str, float]:
        """What every backend gets besides the data."""
        ...

    def facts(self, data: Arrays, parameters: Parameters) -> dict[str, float]:
        """Measured on the data: what decides how much work there is."""
        ...

    def memory_bytes(self, size: int, facts: Mapping[str, float]) -> int:
        """Estimated peak of the hungriest backend, before it runs."""
        ...

    def check(self, data: Arrays, parameters: Parameters, reference: Arrays, candidate: Arrays) -> Parity:
        """Whether both results are the same."""
        ...


def workload_names() -> tuple[str, ...]:
    """The workloads there are."""
    return tuple(_HOME)


def find_workload(name: str) -> Workload:
    """The workload of this name. Raises RequestError with the names that exist."""
    home = _HOME.get(name) if isinstance(name, str) else None
    if home is None:
        raise RequestError(f"There is no workload {name!r}; choose one of: {', '.join(_HOME)}.")
    workload: Workload = importlib.import_module(home).WORKLOAD
    return workload
