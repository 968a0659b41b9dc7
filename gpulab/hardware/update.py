"""One GPU asked for what moves each second; the rest is taken from the last whole reading of it."""

from __future__ import annotations

import time
from typing import Any

from gpulab.hardware.asking import Asking, Terms
from gpulab.hardware.devices import LINKS, Device, Memory, Process
from gpulab.hardware.plausible import size

__all__ = ["Update"]

_GONE = (2, 6, 28)
"""Invalid argument, not found, GPU not found: what a handle of something that is no longer there may get."""
_COMPUTE = "nvmlDeviceGetComputeRunningProcesses"


class Update(Asking):
    """At most seven calls: memory, utilization, power, energy, and the list of processes with its size."""

    def __init__(
        self, terms: Terms, last: Asking, *, links: bool, counters: dict[str, tuple[float, int]]
    ) -> None:
        """`links` adds PCIe, NVLink, what is read less often, and shares; `counters` are NVLink's."""
        super().__init__(terms, last.device)
        self.slices = last.slices
        self.handle, self.slice_handles = last.handle, last.slice_handles
        self.tolerated: int = last.tolerated if isinstance(last, Update) else last.unknowns
        """Calls that say "unknown error" on a GPU that works: more of them mean that it no longer does."""
        self._before = last.identities
        self._links = links
        self._counters = counters
        self._is_gone = False

    @property
    def is_stale(self) -> bool:
        return super().is_stale or self._is_gone or self.unknowns > self.tolerated

    def memory(self, handle: Any, *, may_share: bool) -> Memory:
        found = super().memory(handle, may_share=may_share)
        self._is_gone = self._is_gone or self.code in _GONE
        return found

    def run(self) -> None:
        """Ask all of it. Raises nothing that a driver could cause."""
        handle, before = self.handle, self.device
        self.set(memory=self.memory(handle, may_share=before.memory.shared_with_host), **self.load(handle))
        shares: dict[int, float] | None = None
        if self._links:
            self.set(**self.details(handle), **self.links(handle, self._counters))
            shares = None if self.slices else self.shares(handle)
        else:
            self.set(**dict.fromkeys(LINKS))
        processes = self._processes(handle, before.processes, shares)
        self.set(processes=processes, sampled_at=time.time())
        self.slices = tuple(
            self._slice(part, known) for part, known in zip(self.slice_handles, self.slices, strict=True)
        )
        self.judge()

    def _processes(
        self, handle: Any, before: tuple[Process, ...] | None, shares: dict[int, float] | None
    ) -> tuple[Process, ...] | None:
        """Those who compute now; those who only draw, and shares, as they were last told."""
        computing = self.list(_COMPUTE, handle)
        if computing is None:
            return None
        known = {process.pid: process for process in before or ()}
        found = [self._known(known.get(pid), pid, memory, shares) for pid, memory in computing]
        listed = {process.pid for process in found}
        drawing = (p for p in before or () if p.type == "graphics" and p.pid not in listed)
        return (*found, *drawing)

    def _known(
        self, known: Process | None, pid: int, memory: int | None, shares: dict[int, float] | None
    ) -> Process:
        if known is None or self._is_another(pid):
            now = self.process(pid, memory, "compute")
        else:
            held = size(memory, self.device.memory.total_bytes)
            now = known._replace(memory_bytes=held, type="compute")
        return now if shares is None else now._replace(gpu_percent=shares.get(pid))

    def _is_another(self, pid: int) -> bool:
        """Whether a later process has its id by now; one that we can see no longer is still the old."""
        now = self.identify(pid)
        return now is not None and now != self._before.get(pid)

    def _slice(self, handle: Any, known: Device) -> Device:
        return known._replace(
            memory=self.memory(handle, may_share=False),
            processes=self._processes(handle, known.processes, None),
            sampled_at=time.time(),
        )
