"""RMM, and with it cuDF and cuML: a limiting resource for each device, in place before anything is allocated.

Over plain CUDA memory, which is RMM's own default, the resource can be made and set without starting
CUDA. Where cudf.pandas or cuml.accel are installed and start CUDA anyway, the driver's pool takes its
place, and both leave it there instead of switching to managed memory, which knows no cap.
"""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

from gpulab import config
from gpulab.limits.framework import Framework, Outcome
from gpulab.limits.state import Cap

__all__ = ["Rmm"]

_ACCELERATORS = ("cudf.pandas", "cuml.accel.core")
_NO_START = ("RAPIDS_NO_INITIALIZE", "CUDF_NO_INITIALIZE")


class Rmm(Framework):
    """The memory resource of each device."""

    name = "rmm"
    title = "RMM (cuDF, cuML)"
    module = "rmm"
    also = _ACCELERATORS
    by_hand = "set an rmm.mr.LimitingResourceAdaptor yourself"

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[int, Any] = {}
        """Device to the resource before gpulab's."""
        self._ours: dict[int, list[Any]] = {}
        """Device to gpulab's resources, newest last: memory that they gave is given back to them."""

    def imported(self, module: ModuleType) -> None:
        if module.__name__ in _ACCELERATORS and hasattr(module, "install"):
            self.settle(lambda cap: self._stand_before_install(module, cap))
        self.follow()

    def cap(self, cap: Cap) -> Outcome:
        if self.loaded is None:
            raise RuntimeError("the accelerator came without RMM")
        foreign = [self._limit(device, cap) for device in range(cap.devices)]
        if any(foreign):
            return next(outcome for outcome in foreign if outcome is not None)
        return Outcome("growth only" if cap.pool_bytes is None else "in force", "hook")

    def in_force(self) -> int | None:
        """What the newest resource may give and the earlier ones have given; the least over the devices."""
        if self.loaded is None:
            return None
        limits = [self._in_force_of(device) for device in self._ours]
        known = [limit for limit in limits if limit is not None]
        return min(known, default=None)

    def _in_force_of(self, device: int) -> int | None:
        *earlier, newest = self._ours[device]
        if self.loaded.mr.get_per_device_resource(device) is not newest:
            return None
        return int(newest.get_allocation_limit()) + sum(int(r.get_allocated_bytes()) for r in earlier)

    def _limit(self, device: int, cap: Cap) -> Outcome | None:
        """Set, change or lift the limit of one device; says so where the resource is a user's own."""
        mr = self.loaded.mr
        now, ours = mr.get_per_device_resource(device), self._ours.get(device, [])
        if type(now) is not mr.CudaMemoryResource and not (ours and now is ours[-1]):
            return self._foreign(now)
        if cap.pool_bytes is None:
            if ours and now is ours[-1]:
                mr.set_per_device_resource(device, self._found[device])
            return None
        if ours and now is ours[-1] and self._in_force_of(device) == cap.pool_bytes:
            return None
        if not ours or now is not ours[-1]:
            self._found[device] = now
        mr.set_per_device_resource(
            device, self._limiting(device, self._upstream(device, now), cap.pool_bytes)
        )
        return None

    def _limiting(self, device: int, upstream: Any, size: int) -> Any:
        """A limit that counts what the earlier resources have given and not got back."""
        ours = self._ours.setdefault(device, [])
        given = sum(resource.get_allocated_bytes() for resource in ours)
        ours.append(self.loaded.mr.LimitingResourceAdaptor(upstream, max(0, size - given)))
        return ours[-1]

    def _upstream(self, device: int, now: Any) -> Any:
        """What a new limit stands on: the same as the one before, or what was found."""
        return now.get_upstream() if self._ours.get(device) and now is self._ours[device][-1] else now

    def _foreign(self, now: Any) -> Outcome:
        """A resource that somebody else has set. Managed memory knows no cap; it would only start to page."""
        mr, upstream = self.loaded.mr, getattr(now, "upstream_mr", now)
        upstream = getattr(upstream, "upstream_mr", upstream)
        if isinstance(upstream, mr.ManagedMemoryResource):
            raise self.too_late("already uses managed memory")
        return Outcome("own limit", "call", f"RMM has a {type(now).__name__} that gpulab has not set.")

    def _stand_before_install(self, module: Any, cap: Cap) -> Outcome:
        import wrapt

        def install(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
            self.settle(self._before_install)
            return wrapped(*args, **kwargs)

        wrapt.wrap_function_wrapper(module, "install", install)
        return self.cap(cap)

    def _before_install(self, cap: Cap) -> Outcome:
        """CUDA is about to start: the driver's pool takes the place of plain CUDA memory, under the limit."""
        outcome = self.cap(cap)
        if cap.pool_bytes is not None and outcome.state == "in force" and not self._must_not_start():
            with contextlib.suppress(RuntimeError, MemoryError):  # no GPU, or one without such a pool
                self._take_drivers_pool(cap.pool_bytes)
        return outcome

    def _take_drivers_pool(self, size: int) -> None:
        mr = self.loaded.mr
        now = mr.get_current_device_resource()
        device = next((number for number, ours in self._ours.items() if ours[-1] is now), None)
        if device is not None and type(now.get_upstream()) is mr.CudaMemoryResource:
            pool = mr.CudaAsyncMemoryResource()
            mr.set_per_device_resource(device, self._limiting(device, pool, size))

    @staticmethod
    def _must_not_start() -> bool:
        env = config.inherited()
        return any(name in env for name in _NO_START)
