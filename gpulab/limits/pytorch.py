"""PyTorch: a fraction of each device, set by its public call in the moment when CUDA starts.

That call itself would start CUDA, so before that it waits in torch's queue of calls for that moment
(`torch.cuda._lazy_call`). The queue is private, but it is what torch's own modules and its best-known
extensions have used for years, and unlike an allocator variable it cannot stop torch from starting.
"""

from __future__ import annotations

from typing import Any

from gpulab import config
from gpulab.limits.framework import Framework, Outcome
from gpulab.limits.state import Cap

__all__ = ["PyTorch"]

_CONFIGURATIONS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_OWN_FRACTION = "per_process_memory_fraction"


class PyTorch(Framework):
    """The caching allocator, which grows by itself."""

    name = "torch"
    title = "PyTorch"
    module = "torch"
    by_hand = "call torch.cuda.set_per_process_memory_fraction yourself"

    def __init__(self) -> None:
        super().__init__()
        self._queued = False
        self._set: dict[int, float] = {}
        """Device to the fraction that gpulab has set."""

    def cap(self, cap: Cap) -> Outcome:
        torch = self.loaded
        if not torch.backends.cuda.is_built():
            return Outcome(
                "not capped", remedy="This PyTorch was built without CUDA: there is nothing to cap."
            )
        if self._has_own_fraction():
            return Outcome("own limit", "variable", "Your own allocator variable limits PyTorch.")
        if torch.cuda.is_initialized():
            return self._fractions(cap, "call")
        if cap.pool_bytes is not None and not self._queued:
            torch.cuda._lazy_call(self._at_start)
            self._queued = True
        return Outcome("growth only" if cap.pool_bytes is None else "when CUDA starts", "hook")

    def in_force(self) -> int | None:
        """The smallest over the devices that gpulab has limited."""
        torch = self.loaded
        if torch is None or not self._set or not torch.cuda.is_initialized():
            return None
        read = getattr(torch.cuda, "get_per_process_memory_fraction", None)
        if read is None:  # before torch 2.6 it can be set and not read
            return None
        return min(int(read(device) * _total(torch, device)) for device in self._set)

    def _at_start(self) -> None:
        """Called by torch once CUDA is up; what is asked may have changed since it was queued."""
        self.settle(lambda cap: self._fractions(cap, "hook"))

    def _fractions(self, cap: Cap, by: str) -> Outcome:
        torch = self.loaded
        if torch.cuda.get_allocator_backend() == "pluggable":
            return Outcome(
                "own limit", "RMM", "PyTorch's memory comes from another allocator, which limits it."
            )
        for device in range(torch.cuda.device_count()):
            self._fraction(torch, device, cap)
        return Outcome("in force" if cap.pool_bytes is not None else "growth only", by)

    def _fraction(self, torch: Any, device: int, cap: Cap) -> None:
        if not cap.by_user and self._is_users(torch, device):
            return
        if cap.pool_bytes is None:
            if self._set.pop(device, None) is not None:
                torch.cuda.set_per_process_memory_fraction(1.0, device)
            return
        fraction = min(1.0, cap.pool_bytes / _total(torch, device))
        torch.cuda.set_per_process_memory_fraction(fraction, device)
        self._set[device] = fraction

    def _is_users(self, torch: Any, device: int) -> bool:
        """Whether a fraction is in force that gpulab has not set."""
        read = getattr(torch.cuda, "get_per_process_memory_fraction", None)
        now = 1.0 if read is None else float(read(device))
        return abs(now - self._set.get(device, 1.0)) > 1e-6

    @staticmethod
    def _has_own_fraction() -> bool:
        env = config.inherited()
        return any(_OWN_FRACTION in env.get(name, "") for name in _CONFIGURATIONS)


def _total(torch: Any, device: int) -> int:
    return int(torch.cuda.get_device_properties(device).total_memory)
