"""One way to do a workload's work: a library, an algorithm, a side. Nothing heavy is imported here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from gpulab.compare.arrays import save_arrays

if TYPE_CHECKING:
    from gpulab.compare.arrays import Arrays

__all__ = ["Backend", "CupyBackend", "Parameters"]

Parameters = Mapping[str, float]

_NO_DEVICE = 100  # cudaErrorNoDevice


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
    interface: str = ""
    """The library whose interface its user writes against: cuDF's is pandas', cuML's scikit-learn's.

    A GPU backend is compared with the fastest CPU backend of the same interface, besides the best one.
    """

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

    def prepare(self, arrays: Arrays, parameters: Parameters, folder: str) -> Any:  # noqa: ARG002
        """The data as this library's user holds them before the work: a frame, a table, a file's path.

        Not timed, once for each size. `folder` holds what the workload's `write_files` wrote.
        """
        return arrays

    def fresh(self, prepared: Any) -> Any:
        """What one repeat gets: a copy, if the work changes its inputs. Not timed."""
        return prepared

    def transfer_in(self, prepared: Any) -> Any:
        """Bring the data where `compute` needs it: the first part of a timed repeat."""
        return prepared

    def compute(self, inputs: Any, parameters: Parameters) -> Any:
        """The work itself."""
        raise NotImplementedError

    def transfer_out(self, outputs: Any) -> Arrays:
        """Bring the results back as NumPy arrays: the last part of a timed repeat."""
        return dict(outputs)

    def keep(self, outputs: Any, folder: str) -> None:
        """Write the results into `folder`, for the workload's `kept` to read. Not timed."""
        save_arrays(self.transfer_out(outputs), folder)

    def synchronize(self) -> None:
        """Wait until nothing of ours runs on the device any more."""

    def placement(self, inputs: Any, parameters: Parameters, outputs: Any) -> str | None:  # noqa: ARG002
        """Why it is not proved that `outputs` came from the GPU; None if it is, or on the CPU side.

        Not timed: it may run `compute` once more under a profiler.
        """
        return None

    def fell_back(self) -> tuple[str, ...]:
        """What `placement` saw run on the CPU although the GPU was asked for, a sentence each."""
        return ()


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

    def placement(self, inputs: Any, parameters: Parameters, outputs: Any) -> str | None:  # noqa: ARG002
        from gpulab.compare.placement import not_on_device

        return not_on_device(outputs)
