"""What is asked of each framework and what is in force, and the driver's figure for this process."""

from __future__ import annotations

import os
from typing import NamedTuple

from gpulab import config
from gpulab.config import Settings
from gpulab.errors import ConfigError
from gpulab.hardware.observe import observe
from gpulab.hardware.owners import sees_host_processes
from gpulab.limits.framework import Framework, Outcome
from gpulab.limits.pools import pool_bytes
from gpulab.limits.state import NOTHING, Cap, asked
from gpulab.units import format_bytes

__all__ = ["FrameworkState", "dbscan_batch_mbytes", "excess", "process_bytes", "report"]

_LEAST_BATCH_MBYTES = 64
_TOLERANCE_BYTES = 64 * 2**20
"""The driver counts in larger steps than the frameworks do."""


class FrameworkState(NamedTuple):
    """One framework in this process."""

    name: str
    title: str
    state: str
    """not installed, when imported, or one of `Outcome`"""
    asked_bytes: int | None = None
    """The cap that its pool should have; None if none is asked, or it takes none."""
    in_force_bytes: int | None = None
    """The cap as the framework itself reports it; None if it does not, or not before CUDA starts."""
    by: str = ""
    """hook, call, variable or RMM"""
    remedy: str = ""


def report() -> tuple[FrameworkState, ...]:
    """Every framework that gpulab knows, in a fixed order; starts nothing and raises nothing."""
    from gpulab.limits.applying import FRAMEWORKS

    cap = asked()
    return tuple(_state(framework, cap) for framework in FRAMEWORKS)


def process_bytes(settings: Settings | None = None) -> int | None:
    """The GPU memory that NVML counts for this process, over all devices; None if it does not say.

    In a container NVML's process numbers are the host's, so nothing is known there.
    """
    try:
        settings = config.load() if settings is None else settings
    except ConfigError:
        return None
    snapshot = observe(settings=settings)
    if not snapshot.driver.ok or not (snapshot.simulated or sees_host_processes()):
        return None
    if any(device.processes is None for device in snapshot.devices):
        return None
    found = [p.memory_bytes for d in snapshot.devices for p in d.processes or () if p.pid == os.getpid()]
    known = [size for size in found if size is not None]
    return sum(known) if len(known) == len(found) else None


def excess(settings: Settings) -> str | None:
    """One sentence if this process has more GPU memory by NVML's figure than its lease's share, else None."""
    share = settings.memory_limit
    used = None if share is None else process_bytes(settings)
    if share is None or used is None or used <= share + _TOLERANCE_BYTES:
        return None
    return (
        f"This kernel uses {format_bytes(used)} of GPU memory, more than its share of {format_bytes(share)}; "
        "free what you no longer need (`%gpu limits` shows what is capped), or restart the kernel."
    )


def dbscan_batch_mbytes() -> int | None:
    """The `max_mbytes_per_batch`, in 10^6 bytes, that cuML's DBSCAN needs under the cap: half of the pool.

    By itself it plans with most of the GPU's memory whatever cap its pool has, and would fail at the
    cap. None without a cap, which is also its own default.
    """
    cap = asked()
    memory = config.load().memory_limit if cap is None else cap.memory_bytes
    return None if memory is None else max(_LEAST_BATCH_MBYTES, pool_bytes(memory) // 2 // 10**6)


def _state(framework: Framework, cap: Cap | None) -> FrameworkState:
    wanted = (cap or NOTHING).pool_bytes if framework.takes_cap else None
    outcome = framework.outcome if framework.loaded is not None else None
    if outcome is None:
        outcome = _before_import(framework, cap)
    return FrameworkState(
        framework.name,
        framework.title,
        outcome.state,
        wanted,
        _in_force(framework),
        outcome.by,
        outcome.remedy,
    )


def _before_import(framework: Framework, cap: Cap | None) -> Outcome:
    if not framework.is_installed():
        return Outcome("not installed")
    if cap is None:
        return Outcome("not capped", remedy="Nothing is asked; take a share, or call gpulab.limit_memory.")
    return Outcome("when imported", "hook") if framework.takes_cap else Outcome("not capped")


def _in_force(framework: Framework) -> int | None:
    if framework.loaded is None:
        return None
    try:
        return framework.in_force()
    except Exception:  # noqa: BLE001 - the rim: a framework that cannot be read is unknown, and no cell fails for it
        return None
