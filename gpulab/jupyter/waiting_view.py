"""What `%gpu wait` shows while it waits: the place, for how long, who has the GPUs, who else waits."""

from __future__ import annotations

import time

from gpulab import config
from gpulab.allocation import leases, session
from gpulab.allocation.status import status
from gpulab.config import Settings
from gpulab.errors import GpulabError
from gpulab.hardware.devices import Snapshot
from gpulab.hardware.observe import observe
from gpulab.jupyter.overview import HOLDERS, Overview, holder_rows, notes, queue_rows
from gpulab.jupyter.turn import Turn
from gpulab.jupyter.wording import asked
from gpulab.units import format_duration

__all__ = ["WaitingView"]

_LOOK_EVERY = 30.0


class WaitingView:
    """The wait of one kernel, drawn again and again; asks for the GPUs seldom and for the leases always."""

    def __init__(self, entered: Turn) -> None:
        self._entered = entered
        self._settings: Settings = config.load()
        self._snapshot: Snapshot | None = None
        self._seen: tuple[str, ...] = ()

    def now(self, seconds: float) -> Overview:
        """How it stands after `seconds` of waiting."""
        live = leases.live_leases(self._settings)
        snapshot = self._look(tuple(lease.id for lease in live))
        report = status(snapshot, live, self._settings)
        return Overview(
            self._sentences(seconds),
            holder_rows(report, session.current()),
            notes(snapshot, report["lease_scope"], figures=False),
            queue_rows(self._settings, self._entered.id),
            HOLDERS,
        )

    def ended(self, seconds: float) -> Overview:
        """What stays in the notebook."""
        waited = f"Waited {format_duration(seconds)} for {self._what()}"
        if self._entered.news.is_set():
            return Overview((f"{waited}.",), (), "")
        return Overview((f"{waited}, not yet served{self._place(', place {} of {} is kept')}.",), (), "")

    def _sentences(self, seconds: float) -> tuple[str, ...]:
        where = self._place(": place {} of {}")
        return (
            f"This kernel waits for {self._what()}{where}, for {format_duration(seconds)} so far.",
            "Interrupt the kernel (■) to go on without; the place is kept.",
        )

    def _what(self) -> str:
        request = self._entered.request
        return asked(request.gpus, request.mode, request.memory_bytes)

    def _place(self, text: str) -> str:
        try:
            return text.format(*self._entered.standing())
        except GpulabError:
            return ""  # its turn has come just now

    def _look(self, live: tuple[str, ...]) -> Snapshot:
        old = self._snapshot
        if old is None or live != self._seen or time.time() - old.time > _LOOK_EVERY:
            old = self._snapshot = observe(settings=self._settings)
            self._seen = live
        return old
