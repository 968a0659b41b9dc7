"""The machine as a result needs it: what one process may use of it, and why there is no GPU side."""

from __future__ import annotations

import os
import platform
import sys

from gpulab.compare.conditions.container import container_files, lines
from gpulab.compare.results.records import Machine
from gpulab.compare.timing import pressure_file

__all__ = ["describe_machine", "memory_room"]


def describe_machine() -> Machine:
    """This machine, without its name. Asks the driver once; a driver that hangs costs seconds, no more."""
    from gpulab.hardware.observe import observe

    snapshot = observe()
    usable = [device for device in snapshot.devices if device.state == "ok"]
    reason = ""
    if snapshot.simulated:
        reason = "the GPUs of this machine are simulated, and simulated GPUs cannot compute"
    elif not snapshot.driver.ok:
        reason = snapshot.driver.message or "the GPU driver does not answer; `gpulab doctor` names the remedy"
    elif not usable:
        reason = "the driver answers, but lists no usable GPU; `gpulab doctor` names the remedy"
    return Machine(
        cpu=_cpu_name(),
        usable_cores=_usable_cores(),
        core_quota=_core_quota(),
        memory_bytes=_memory_total(),
        platform=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        gpu=usable[0].name if usable else None,
        driver=snapshot.driver.driver,
        cuda=snapshot.driver.cuda,
        gpu_reason=reason.rstrip("."),
        simulated=snapshot.simulated,
        pressure=pressure_file(),
    )


def memory_room() -> int | None:
    """Bytes that a process may use: the least of what is free and the limits of container and process.

    None where none of them is known.
    """
    limits = [*_container_limits(), *_process_limits(), *_meminfo("MemAvailable")]
    return min(limits, default=None)


def _cpu_name() -> str | None:
    for line in lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def _usable_cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _core_quota() -> float | None:
    for path in container_files("cpu.max", "cpu"):
        quota, _, period = next(lines(path), "").partition(" ")
        if quota.isdecimal() and period.strip().isdecimal():
            return int(quota) / int(period)
    for path in container_files("cpu.cfs_quota_us", "cpu"):
        quota = next(lines(path), "")
        period = next(lines(path.replace("quota", "period")), "")
        if quota.isdecimal() and period.isdecimal():
            return int(quota) / int(period)
    return None


def _memory_total() -> int | None:
    return min([*_container_limits(), *_meminfo("MemTotal")], default=None)


def _container_limits() -> list[int]:
    found = []
    for name in ("memory.max", "memory.limit_in_bytes"):
        for path in container_files(name, "memory"):
            text = next(lines(path), "")
            if text.isdecimal() and int(text) < 2**60:  # version 1 writes a huge number for "no limit"
                found.append(int(text))
    return found


def _process_limits() -> list[int]:
    if sys.platform == "win32":
        return []
    import resource

    soft = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return [limit for limit in soft if limit != resource.RLIM_INFINITY]


def _meminfo(entry: str) -> list[int]:
    return [int(line.split()[1]) * 1024 for line in lines("/proc/meminfo") if line.startswith(entry)]
