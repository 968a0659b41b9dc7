"""Which processes stand behind a lease: its holder, the holder's children, and who keeps it alive."""

import contextlib
import os
from collections.abc import Iterable

from gpulab.allocation.records import LeaseRecord, start_time, stat_field
from gpulab.hardware.devices import Device, Process

__all__ = ["is_alive", "keeper", "lease_of", "strangers_bytes"]

_MAX_ANCESTORS = 64


def is_alive(record: LeaseRecord) -> bool | None:
    """Whether the very process that took the lease lives; None if we cannot know."""
    if record.pid is None:
        return None
    started = start_time(record.pid)
    return started is not None and (record.pid_started is None or started == record.pid_started)


def keeper(record: LeaseRecord, path: str) -> int | None:
    """The holder; once it is gone the descendant that keeps the inherited lease alive, if we see one."""
    if is_alive(record) in (True, None):
        return record.pid
    with contextlib.suppress(OSError):
        target = os.stat(path)
        for name in os.listdir("/proc"):
            if name.isdecimal() and int(name) != os.getpid() and _has_open(name, target, record.uid):
                return int(name)
    return None


def lease_of(process: Process, leases: Iterable[LeaseRecord]) -> str | None:
    """The lease whose holder is this process or an ancestor of it; None if there is none."""
    holding = {lease.pid: lease.id for lease in leases if is_alive(lease)}
    pid = process.pid
    for _ in range(_MAX_ANCESTORS if holding else 0):
        if pid in holding or pid <= 1:
            break
        pid = stat_field(pid, 1) or 0  # its parent
    return holding.get(pid)


def strangers_bytes(device: Device, leases: Iterable[LeaseRecord]) -> int:
    """Memory of processes that certainly belong to no lease: those we can see, and match to none.

    Where a holder lives in a container its processes cannot be matched, so nobody is certain there.
    """
    here = [lease for lease in leases if device.uuid in lease.gpus]
    if any(lease.container for lease in here):
        return 0
    return sum(
        process.memory_bytes or 0
        for process in device.processes or ()
        if process.user is not None and lease_of(process, here) is None
    )


def _has_open(pid: str, target: os.stat_result, uid: int | None) -> bool:
    """Another account may open and lock the file too, but that keeps no lease alive."""
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        if os.stat(f"/proc/{pid}").st_uid != uid:
            return False
        for entry in entries:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(entry.path), target):
                    return True
    return False
