"""Who else computes on the GPU that is being measured, as far as the driver says."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from gpulab.compare.results.records import Strangers
from gpulab.hardware.owners import sees_host_processes

if TYPE_CHECKING:
    from gpulab.compare.workers.client import WorkerProcess
    from gpulab.hardware.devices import Device, Snapshot

__all__ = ["around", "strangers_on", "used_device"]


def around(
    workers: Mapping[str, WorkerProcess], own: Collection[int], before: Snapshot, after: Snapshot
) -> dict[str, Strangers]:
    """For each of these GPU workers, the strangers on its GPU in both snapshots.

    `own` are the process ids of all GPU workers there are, also of those that are idle meanwhile.
    """
    found = {}
    for name, worker in workers.items():
        counts = [_count(worker, own, snapshot) for snapshot in (before, after)]
        reason = next((count for count in counts if isinstance(count, str)), "")
        first, last = (count if isinstance(count, int) else None for count in counts)
        found[name] = Strangers(first, last, reason)
    return found


def _count(worker: WorkerProcess, own: Collection[int], snapshot: Snapshot) -> int | str:
    if not snapshot.driver.ok:
        return "the driver did not answer"
    device = used_device(snapshot.devices, worker.mask, worker.gpu)
    comparable = snapshot.simulated or sees_host_processes()
    return strangers_on(device, worker.pid, own, comparable=comparable)


def used_device(devices: Iterable[Device], mask: str | None, digits: str | None) -> Device | None:
    """The device that a process computes on; None if that cannot be told.

    Parameters
    ----------
    devices
        Those of a snapshot.
    mask
        The process's CUDA_VISIBLE_DEVICES. A UUID at its beginning names the device, also a MIG
        slice, for which CUDA may report the UUID of the whole GPU.
    digits
        The UUID as CUDA reports it, in hexadecimal; maybe its beginning only.
    """
    first = (mask or "").partition(",")[0].strip()
    if first.startswith(("GPU-", "MIG-")):
        found = [device for device in devices if (device.uuid or "").startswith(first)]
    else:
        found = [device for device in devices if digits and _digits(device).startswith(digits)]
    return found[0] if len(found) == 1 else None


def _digits(device: Device) -> str:
    return (device.uuid or "").partition("-")[2].replace("-", "").lower()


def strangers_on(device: Device | None, worker: int, own: Collection[int], *, comparable: bool) -> int | str:
    """Compute processes on this device that are neither our workers nor this process, or why unknown.

    A list that lacks the worker, which has a context there, proves nothing. In a container the
    driver's process ids are the host's and not `comparable` with ours: only a list that has no room
    for a stranger says something then.
    """
    if device is None:
        return "it cannot be told which of the driver's GPUs it was"
    if device.processes is None:
        return "the driver did not list the processes on it"
    pids = {process.pid for process in device.processes if process.type == "compute"}
    if not pids or (comparable and worker not in pids):
        return "the driver's list of processes lacks our own"
    if comparable:
        return len(pids.difference(own, {os.getpid()}))
    if len(pids) > len(own):
        return "in this container the driver's process ids cannot be told from our own"
    return 0
