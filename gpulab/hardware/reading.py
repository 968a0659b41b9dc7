"""One GPU asked for everything, value by value: each is None where the driver cannot or will not say."""

from __future__ import annotations

import re
import time
from typing import Any

from gpulab.hardware.asking import DENIED, UNKNOWN, Asking, Terms
from gpulab.hardware.devices import Device, Process
from gpulab.hardware.plausible import percent
from gpulab.hardware.states import NvmlError, denied

__all__ = ["Reading"]

_MODES = {0: "default", 1: "exclusive_process", 2: "prohibited", 3: "exclusive_process"}
_INTEGRATED = re.compile(r"\b(GB10|Thor|Orin|Xavier|Tegra)\b")
"""GPUs without memory of their own; from any other, "not supported" leaves its memory unknown."""


class Reading(Asking):
    """Everything that one GPU says."""

    def __init__(
        self, terms: Terms, index: int, *, full: bool, counters: dict[str, tuple[float, int]] | None = None
    ) -> None:
        """`counters` are NVLink's at the look before; without them its links are not asked."""
        super().__init__(terms, Device(index, sampled_at=time.time()))
        self._full = full
        self._counters = counters

    def run(self) -> None:
        """Ask all of it. Raises nothing that a driver could cause."""
        nvml = self.terms.nvml
        handle = self.handle = self.ask(nvml.device, self.index)
        if handle is None:
            self._fail()
            return
        uuid = self.ask(nvml.text, "nvmlDeviceGetUUID", handle)
        if not uuid:
            self._fail()
            return
        self.set(uuid=uuid, name=self.ask(nvml.text, "nvmlDeviceGetName", handle))
        sliced = bool(self.ask(nvml.is_sliced, handle))
        shares = not sliced and bool(_INTEGRATED.search(self.device.name or ""))
        self.set(memory=self.memory(handle, may_share=shares))
        if self._full:
            self.set(**self.load(handle), **self.details(handle))
        else:
            gpu, memory = self.ask(nvml.rates, handle) or (None, None)
            self.set(gpu_percent=percent(gpu), memory_percent=percent(memory))
        if self._counters is not None:
            self.set(**self.links(handle, self._counters))
        mode = self.ask(nvml.number, "nvmlDeviceGetComputeMode", handle)
        self.set(compute_mode=None if mode is None else _MODES.get(mode))
        self.set(processes=self._processes(handle, sliced=sliced), sampled_at=time.time())
        if sliced:
            self.slices = self._slices(handle)
        self.judge()

    def _fail(self) -> None:
        """The GPU cannot even be named."""
        self.judge()
        if self.code == DENIED:
            self.set(state="error", message=denied(self.index))
        elif self.device.state == "ok":
            reason = str(NvmlError(self.code)) if self.code else "nothing"
            self.set(
                state="error",
                message=f"NVML answers {reason} for GPU {self.index}; "
                "reset that GPU with `nvidia-smi -r`, or reboot.",
            )
        self.needs_init = self.needs_init or self.code == UNKNOWN

    def _processes(self, handle: Any, *, sliced: bool) -> tuple[Process, ...] | None:
        compute = self.list("nvmlDeviceGetComputeRunningProcesses", handle)
        if compute is None:
            return None
        shares = {} if sliced or not self._full else self.shares(handle)
        found = self._describe(compute, shares, "compute")
        if not self._full and not self.device._replace(processes=found).unlisted_bytes:
            return found  # else a desktop may hold the memory, and that is nobody who computes
        graphics = self.list("nvmlDeviceGetGraphicsRunningProcesses", handle) or []
        known = {process.pid for process in found}
        return found + tuple(p for p in self._describe(graphics, shares, "graphics") if p.pid not in known)

    def _describe(
        self, entries: list[tuple[int, int | None]], shares: dict[int, float], kind: str
    ) -> tuple[Process, ...]:
        return tuple(
            self.process(pid, memory, kind)._replace(gpu_percent=shares.get(pid)) for pid, memory in entries
        )

    def _slices(self, handle: Any) -> tuple[Device, ...]:
        count = self.ask(self.terms.nvml.number, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        handles = (self.ask(self.terms.nvml.mig_device, handle, place) for place in range(count))
        self.slice_handles = tuple(part for part in handles if part is not None)
        return tuple(self._slice(part) for part in self.slice_handles)

    def _slice(self, handle: Any) -> Device:
        return Device(
            index=self.index,
            uuid=self.ask(self.terms.nvml.text, "nvmlDeviceGetUUID", handle),
            name=self.ask(self.terms.nvml.text, "nvmlDeviceGetName", handle),
            kind="mig",
            parent_uuid=self.device.uuid,
            sampled_at=time.time(),
            memory=self.memory(handle, may_share=False),
            compute_mode=self.device.compute_mode,
            processes=self._processes(handle, sliced=True),
        )
