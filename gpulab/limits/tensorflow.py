"""TensorFlow: growth by its variable, and a logical device of the pool's size when its context starts.

Listing the GPUs starts the driver, so nothing is configured before TensorFlow itself does that; it also
leaves users free to set memory growth of their own until then.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from gpulab.limits.framework import Framework, Outcome
from gpulab.limits.state import Cap

__all__ = ["TensorFlow"]

_CONTEXT = "tensorflow.python.eager.context"


class TensorFlow(Framework):
    """The arena of each GPU."""

    name = "tensorflow"
    title = "TensorFlow"
    module = "tensorflow"
    by_hand = "call tf.config.set_logical_device_configuration yourself"

    def __init__(self) -> None:
        super().__init__()
        self._limits: dict[str, int] = {}
        """Device name to the MiB that gpulab has set."""
        self._wrapped = False

    def cap(self, cap: Cap) -> Outcome:
        if self._started():
            return self._late(cap)
        if cap.pool_bytes is None:
            return Outcome("growth only", "variable")
        if not self._wrapped:
            self._wait_for_start()
        return Outcome("when CUDA starts", "hook")

    def in_force(self) -> int | None:
        if not self._limits or not self._started():
            return None
        found = [self._limit_of(gpu) for gpu in self._gpus() if gpu.name in self._limits]
        known = [limit for limit in found if limit is not None]
        return min(known) * 2**20 if known else None

    def _started(self) -> bool:
        """Whether the context is up; it is None, or not initialized, until the first operation."""
        context = sys.modules[_CONTEXT].context_safe()
        return context is not None and bool(context._initialized)

    def _late(self, cap: Cap) -> Outcome:
        """Once TensorFlow runs, the limit is in force, or it is too late for another."""
        if not self._gpus():
            return Outcome("not capped", remedy="TensorFlow sees no GPU in this process.")
        wanted = None if cap.pool_bytes is None else cap.pool_bytes >> 20
        if all(self._limit_of(gpu) == wanted for gpu in self._gpus()):
            return Outcome("growth only", "variable") if wanted is None else Outcome("in force", "hook")
        raise self.too_late("has already started")

    def _wait_for_start(self) -> None:
        """Stand before the first `ensure_initialized` of its context, and step aside after that."""
        context = sys.modules[_CONTEXT].Context
        original = context.ensure_initialized

        @functools.wraps(original)
        def ensure_initialized(this: Any) -> Any:
            if context.ensure_initialized is ensure_initialized:
                context.ensure_initialized = original
            if not this._initialized:
                self.settle(self._configure)
            return original(this)

        context.ensure_initialized = ensure_initialized
        self._wrapped = True

    def _configure(self, cap: Cap) -> Outcome:
        self._wrapped = False
        if cap.pool_bytes is None:
            return Outcome("growth only", "variable")
        gpus = self._gpus()
        if not gpus:
            return Outcome("not capped", remedy="TensorFlow sees no GPU in this process.")
        if any(self._limit_of(gpu) is not None for gpu in gpus):
            return Outcome("own limit", "call", "Your own logical devices limit TensorFlow.")
        config = self.loaded.config
        for gpu in gpus:  # TensorFlow wants them all alike
            limit = config.LogicalDeviceConfiguration(memory_limit=cap.pool_bytes >> 20)
            config.set_logical_device_configuration(gpu, [limit])
            self._limits[gpu.name] = cap.pool_bytes >> 20
        return Outcome("in force", "hook")

    def _gpus(self) -> list[Any]:
        return list(self.loaded.config.get_visible_devices("GPU"))

    def _limit_of(self, gpu: Any) -> int | None:
        """MiB of its logical devices together; None without any."""
        logical = self.loaded.config.get_logical_device_configuration(gpu)
        return int(sum(device.memory_limit for device in logical)) if logical else None
