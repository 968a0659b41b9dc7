"""Which processes stand behind a lease: its holder, the holder's children, and who keeps it alive."""

import contextlib
import os
from collections.abc import Iterable

from gpulab.allocation.records import LeaseRecord, start_time, stat_field
from gpulab.hardware.devices import Device, Process
from gpulab.hardware.owners import lease_in_environment

__all__ = ["Lineage", "is_alive", "keeper", "lease_of"]

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
    return Lineage().lease_of(process, leases)


class Lineage:
    """Which process belongs to which lease. It reads /proc once for each process: make one for each look."""

    def __init__(self, *, sees_all: bool = False) -> None:
        """`sees_all`: a process that we cannot see is in another namespace, so of no lease in ours."""
        self._sees_all = sees_all
        self._alive: dict[str, bool] = {}
        self._parents: dict[int, int] = {}

    def lease_of(self, process: Process, leases: Iterable[LeaseRecord]) -> str | None:
        """As the function of this name; a child that has left its parent is known by its environment."""
        if process.user is None:  # in a container NVML's number may be a stranger's here
            return None
        holding = {lease.pid: lease.id for lease in leases if self._is_seen(lease)}
        pid = process.pid
        for _ in range(_MAX_ANCESTORS if holding else 0):
            if pid in holding or pid <= 1:
                break
            pid = self._parent(pid)
        return holding.get(pid) or self._by_name(process, leases)

    def strangers(self, device: Device, leases: Iterable[LeaseRecord]) -> tuple[Process, ...]:
        """The device's processes that certainly belong to none of its leases.

        Where a holder lives in a container nobody is certain, since its processes cannot be matched;
        where we cannot see a holder, those of its account are not.
        """
        here = [lease for lease in leases if device.uuid in lease.gpus]
        if device.processes is None or any(lease.container for lease in here):
            return ()
        hidden = {lease.user or str(lease.uid) for lease in here if not self._is_seen(lease)}
        unseen = not here or (self._sees_all and not hidden)
        return tuple(
            process
            for process in device.processes
            if (unseen if process.user is None else process.user not in hidden)
            and (not here or self.lease_of(process, here) is None)
        )

    def _is_seen(self, lease: LeaseRecord) -> bool:
        if lease.id not in self._alive:
            self._alive[lease.id] = bool(is_alive(lease))
        return self._alive[lease.id]

    def _parent(self, pid: int) -> int:
        if pid not in self._parents:
            self._parents[pid] = stat_field(pid, 1) or 0
        return self._parents[pid]

    def _by_name(self, process: Process, leases: Iterable[LeaseRecord]) -> str | None:
        """Believed only of the lease's own account: anybody can put a name into an environment."""
        names = {lease.id: lease.user or str(lease.uid) for lease in leases if not lease.container}
        named = lease_in_environment(process.pid) if process.user in names.values() else None
        return named if named is not None and names.get(named) == process.user else None


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
