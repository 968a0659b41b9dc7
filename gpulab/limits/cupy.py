"""CuPy: the limit of its default pool, by the variable that each device's pool reads when it is made."""

from __future__ import annotations

import sys
from typing import Any

from gpulab import config
from gpulab.limits import environment
from gpulab.limits.framework import Framework, Outcome, cuda_started
from gpulab.limits.state import Cap

__all__ = ["CuPy"]


class CuPy(Framework):
    """The default memory pool, which grows by itself."""

    name = "cupy"
    title = "CuPy"
    module = "cupy"
    also = ("cudf",)
    by_hand = "call cupy.get_default_memory_pool().set_limit yourself"

    def __init__(self) -> None:
        super().__init__()
        self._set = False

    def cap(self, cap: Cap) -> Outcome:
        if self.loaded is None:
            raise RuntimeError("cudf came without CuPy")
        if self._follows_rmm():
            return Outcome("in force" if cap.pool_bytes is not None else "growth only", "RMM")
        if not cap.by_user and self._is_users():
            return Outcome("own limit", "variable", "Your own CUPY_GPU_MEMORY_LIMIT limits CuPy.")
        if not cuda_started():
            return Outcome("growth only" if cap.pool_bytes is None else "when CUDA starts", "variable")
        if cap.pool_bytes is not None or self._set:
            self.limit_each(cap.pool_bytes or 0)
        return Outcome("growth only" if cap.pool_bytes is None else "in force", "call")

    def limit_each(self, size: int) -> None:
        """Set the limit, in bytes, of the pool of every visible device; 0 is none. CUDA must have started."""
        pool = self.loaded.get_default_memory_pool()
        for device in range(self.loaded.cuda.runtime.getDeviceCount()):
            with self.loaded.cuda.Device(device):
                pool.set_limit(size=size)
        self._set = size > 0

    def in_force(self) -> int | None:
        """Of the current device; 0 in CuPy is no limit."""
        if self.loaded is None or self._follows_rmm() or not cuda_started():
            return None
        return int(self.loaded.get_default_memory_pool().get_limit()) or None

    def _follows_rmm(self) -> bool:
        """As under cuDF, which hands CuPy's memory over to RMM."""
        rmm: Any = sys.modules.get("rmm.allocators.cupy")
        return rmm is not None and self.loaded.cuda.get_allocator() is rmm.rmm_cupy_allocator

    @staticmethod
    def _is_users() -> bool:
        env = config.inherited()
        return bool(env.get(environment.CUPY_LIMIT)) and environment.CUPY_LIMIT not in environment.ours(env)
