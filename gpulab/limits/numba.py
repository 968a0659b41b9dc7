"""Numba has no cap of its own: where RMM is installed, its memory comes from there, as under cuDF."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from gpulab.limits.framework import Framework, Outcome
from gpulab.limits.state import Cap

__all__ = ["Numba"]

_ALLOCATOR = "rmm.allocators.numba"


class Numba(Framework):
    """The memory of numba.cuda's own arrays."""

    name = "numba"
    title = "Numba"
    module = "numba.cuda"
    also = (_ALLOCATOR, "cudf")
    by_hand = "install rmm, which gpulab can limit"

    def cap(self, cap: Cap) -> Outcome:
        if self.loaded is None:
            return Outcome("growth only")
        driver: Any = sys.modules["numba.cuda.cudadrv.driver"]
        chosen = driver._memory_manager
        if chosen is not None and chosen.__module__.startswith(("rmm.", "gpulab.")):
            return Outcome("in force" if cap.pool_bytes is not None else "growth only", "RMM")
        if cap.pool_bytes is None:
            return Outcome("growth only")
        if chosen is not None or driver.config.CUDA_MEMORY_MANAGER != "default":
            return Outcome("own limit", "call", "Numba has a memory manager that gpulab has not set.")
        if importlib.util.find_spec("rmm") is None:
            return Outcome("not capped", remedy=f"Numba has no limit of its own; {self.by_hand}.")
        if any(device.primary_context for device in driver.driver.devices.values()):
            raise self.too_late("already has a CUDA context")
        return self._through_rmm()

    def _through_rmm(self) -> Outcome:
        import rmm.allocators.numba as allocator
        import rmm.mr

        if not hasattr(allocator, "RMMNumbaManager"):  # its import is what imports Numba, and it comes again
            return Outcome("when CUDA starts", "RMM")
        cuda = self.loaded

        class RmmMemory(allocator.RMMNumbaManager):  # type: ignore[misc]
            """RMM's, which alone would take `get_memory_info` away from users."""

            def get_memory_info(self) -> Any:
                return cuda.MemoryInfo(*rmm.mr.available_device_memory())

        cuda.set_memory_manager(RmmMemory)
        return Outcome("in force", "RMM")
