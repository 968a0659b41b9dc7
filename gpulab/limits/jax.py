"""JAX: no preallocation and a fraction of the device, by the variables that its backends read at start."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from gpulab import config
from gpulab.limits import environment
from gpulab.limits.framework import Framework, Outcome
from gpulab.limits.state import Cap
from gpulab.limits.totals import smallest_total

__all__ = ["Jax"]

_CLIENT = "jaxlib.xla_client"
_OPTIONS = "generate_pjrt_gpu_plugin_options"


class Jax(Framework):
    """The arena of each GPU."""

    name = "jax"
    title = "JAX"
    module = "jax"
    also = (_CLIENT,)
    by_hand = "set XLA_PYTHON_CLIENT_MEM_FRACTION before JAX starts"

    def __init__(self) -> None:
        super().__init__()
        self._pool: int | None = None
        """What the variables said when JAX had not started."""

    def imported(self, module: ModuleType) -> None:
        if module.__name__ == _CLIENT and hasattr(module, _OPTIONS):
            self.settle(lambda _cap: self._stand_aside(module))
        self.follow()

    def cap(self, cap: Cap) -> Outcome:
        if self._started():
            return self._late(cap)
        if self._is_users():
            return Outcome("own limit", "variable", "Your own memory fraction limits JAX.")
        self._pool = cap.pool_bytes
        if cap.pool_bytes is None:
            return Outcome("growth only", "variable")
        return self._fraction(cap)

    def in_force(self) -> int | None:
        """The smallest limit that the started GPU backend reports."""
        if self.loaded is None or not self._started():
            return None
        stats = (device.memory_stats() or {} for device in self._devices())
        limits = [int(entry["bytes_limit"]) for entry in stats if "bytes_limit" in entry]
        return min(limits, default=None)

    def _fraction(self, cap: Cap) -> Outcome:
        """The lease's own environment has it; else it is reckoned now, when JAX is wanted."""
        if environment.JAX_FRACTIONS[0] not in config.inherited():
            total = cap.total_bytes if cap.total_bytes is not None else smallest_total()
            if total is None:
                return Outcome(
                    "not capped",
                    remedy="How much memory the GPU has is not known, so JAX only grows; "
                    f"{self.by_hand} to limit it.",
                )
            environment.exchange(cap.memory_bytes, total)
        return Outcome("when CUDA starts", "variable")

    def _late(self, cap: Cap) -> Outcome:
        if not self._devices():
            return Outcome("not capped", remedy="JAX runs on the CPU in this process.")
        if cap.pool_bytes == self._pool:
            return Outcome("growth only" if self._pool is None else "in force", "variable")
        raise self.too_late("has already started its backends")

    def _started(self) -> bool:
        bridge = sys.modules.get("jax._src.xla_bridge")
        return bridge is not None and bool(bridge.backends_are_initialized())

    def _devices(self) -> list[Any]:
        """Its GPUs; only asked once the backends are up, which this would otherwise start."""
        return [device for device in self.loaded.local_devices() if device.platform == "gpu"]

    def _stand_aside(self, client: Any) -> Outcome:
        """A fraction that a user sets after gpulab's (under the other name) would stop JAX, so ours goes."""
        import wrapt

        def options(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
            if self._is_users():
                self._give_way()
            return wrapped(*args, **kwargs)

        wrapt.wrap_function_wrapper(client, _OPTIONS, options)
        return self.outcome or Outcome("when CUDA starts", "variable")

    @staticmethod
    def _give_way() -> None:
        env = config.inherited()
        if environment.JAX_FRACTIONS[0] in environment.ours(env):
            config.export({environment.JAX_FRACTIONS[0]: None})

    @staticmethod
    def _is_users() -> bool:
        """Whether a fraction is in the environment that gpulab has not set."""
        env = config.inherited()
        return any(env.get(name) and name not in environment.ours(env) for name in environment.JAX_FRACTIONS)
