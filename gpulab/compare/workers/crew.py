"""The worker processes of one comparison: started, with what that cost, and given up when they fail."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from gpulab.compare.arrays import save_arrays
from gpulab.compare.backend import Backend
from gpulab.compare.results.records import BackendRecord, Machine
from gpulab.compare.sweep import Timing
from gpulab.compare.workers.client import WorkerProcess
from gpulab.compare.workers.loan import Loan
from gpulab.compare.workload import Workload
from gpulab.errors import WorkloadError

if TYPE_CHECKING:
    from gpulab.compare.arrays import Arrays

__all__ = ["Crew", "made", "write_data"]

START_SECONDS = 120.0
"""What one worker may take to start: on a cold disk a GPU library's import alone can take half of it."""


class Crew:
    """One worker for each backend that can run here, and a record of each that was asked for."""

    def __init__(self, workload: Workload, machine: Machine) -> None:
        self.workload = workload
        self.machine = machine
        self.records: dict[str, BackendRecord] = {}
        self.workers: dict[str, WorkerProcess] = {}
        self.history: dict[str, list[Timing]] = {}

    def start(
        self,
        backends: Iterable[Backend],
        loan: Loan,
        folder: str,
        seed: int,
        tell: Callable[[str], None],
    ) -> None:
        """Start the workers one after the other, for the time of the import is part of the result.

        Raises WorkloadError if none can run.
        """
        pilot = os.path.join(folder, "pilot")
        for size in self._pilot_sizes():
            write_data(self.workload, self.workload.make_data(size, seed), size, made(f"{pilot}-{size}"))
        for backend in backends:
            tell(f"starting {backend.name}")
            self.records[backend.name] = self._start(backend, loan, pilot)
        if not self.workers:
            reasons = "; ".join(f"{record.name}: {record.reason}" for record in self.records.values())
            raise WorkloadError(f"No backend of {self.workload.name} can run here ({reasons}).")

    def set_deadline(self, deadline: float) -> None:
        """For the workers there are: a call that is not done by then is ended with its worker."""
        for worker in self.workers.values():
            worker.deadline = deadline

    def names(self, side: Literal["cpu", "gpu"]) -> list[str]:
        """The backends of one side that are still there."""
        return [name for name in self.workers if self.records[name].side == side]

    def device(self) -> str | None:
        """The GPU that a worker computes on, as it names itself there; None without a GPU side."""
        devices = (record.facts.get("device") for record in self.records.values())
        return next((device for device in devices if device), None)

    def fail(self, name: str, reason: str) -> None:
        """A worker that answered with an error can go on at the next size; a dead one cannot."""
        if not self.workers[name].alive:
            self._drop(name)
            self.records[name] = replace(self.records[name], state="failed", reason=reason)

    def close(self) -> None:
        """End all workers. Twice is fine."""
        for worker in self.workers.values():
            worker.close()

    def _start(self, backend: Backend, loan: Loan, pilot: str) -> BackendRecord:
        record = BackendRecord(
            backend.name,
            backend.title,
            backend.side,
            backend.library,
            "unavailable",
            interface=backend.interface,
        )
        on_gpu = backend.side == "gpu"
        no_gpu, borrowed = (self.machine.gpu_reason, loan) if on_gpu else ("", Loan())
        reason = no_gpu or backend.missing() or borrowed.reason
        if reason:
            return replace(record, reason=reason)
        self.workers[backend.name] = WorkerProcess(
            self.workload.address, backend.name, time.monotonic() + START_SECONDS, borrowed.environment
        )
        try:
            return self._first_calls(record, pilot)
        except WorkloadError as error:
            self._drop(backend.name)
            return replace(record, state="failed", reason=str(error))

    def _first_calls(self, record: BackendRecord, pilot: str) -> BackendRecord:
        """Import, first call and second call, at a size where the work costs next to nothing, and growth."""
        worker, (size, larger) = self.workers[record.name], self._pilot_sizes()
        started = worker.ask("start")
        if "unusable" in started:
            self._drop(record.name)
            return replace(record, reason=started["unusable"])
        worker.gpu = started.pop("gpu")
        results = made(f"{pilot}-{record.name}")
        worker.ask("load", folder=f"{pilot}-{size}", parameters=self.workload.parameters(size))
        first, warm = (worker.ask("verify", folder=results) for _ in range(2))
        worker.ask("load", folder=f"{pilot}-{larger}", parameters=self.workload.parameters(larger))
        growth = worker.ask("verify", folder=results)
        self.history[record.name] = [Timing(size, warm["seconds"]), Timing(larger, growth["seconds"])]
        return replace(
            record,
            state="ready",
            first_call_seconds=first["seconds"],
            warm_call_seconds=warm["seconds"],
            pilot_size=size,
            **started,
        )

    def _pilot_sizes(self) -> tuple[int, int]:
        """One for the first call, and a larger one to see how the time grows."""
        return self.workload.pilot_size, 8 * self.workload.pilot_size

    def _drop(self, name: str) -> None:
        self.workers.pop(name).close()


def made(folder: str) -> str:
    """This folder, which exists now."""
    os.makedirs(folder, exist_ok=True)
    return folder


def write_data(workload: Workload, data: Arrays, size: int, folder: str) -> None:
    """All that the workers read of one size."""
    save_arrays(data, folder)
    workload.write_files(data, workload.parameters(size), folder)
