"""A whole comparison: the sizes walked through within the budget; what goes wrong is kept as a reason."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import gpulab
from gpulab.compare.backend import Backend
from gpulab.compare.conditions.provenance import describe_machine, memory_room
from gpulab.compare.pairing import Pairing
from gpulab.compare.progress import Progress
from gpulab.compare.result import Result
from gpulab.compare.results.records import SizeRun
from gpulab.compare.sweep import Timing, cost, forecast, memory_refusal, parse_sizes, time_refusal
from gpulab.compare.workers.crew import Crew, made, write_data
from gpulab.compare.workers.loan import borrow
from gpulab.compare.workload import Workload, find_workload
from gpulab.errors import RequestError

__all__ = ["Sweep", "choose_backends", "measure"]

SIDES: tuple[Literal["cpu", "gpu"], ...] = ("cpu", "gpu")
GRACE_SECONDS = 5.0
"""What a call may take beyond the budget before its worker is ended."""
LONGEST_BUDGET = 1e9


def measure(
    workload: str,
    *,
    sizes: Iterable[int | float | str] | None,
    backends: Iterable[str] | None,
    budget: float,
    seed: int,
    progress: bool,
) -> Result:
    """See `gpulab.compare.compare`."""
    found = find_workload(workload)
    wanted = parse_sizes(found.sizes if sizes is None else sizes)
    chosen = choose_backends(found, backends)
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 1e-9 < budget < LONGEST_BUDGET:
        raise RequestError(
            f"The budget is a number of seconds above 0 and below 1e9, not {budget!r}; write for example 60."
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise RequestError(f"The seed is a whole number from 0 to 2**32 - 1, not {seed!r}.")
    with Progress(len(wanted), found.title, shown=progress) as bar:
        return Sweep(found, float(budget), seed, bar).run(wanted, chosen)


def choose_backends(workload: Workload, names: Iterable[str] | None) -> tuple[Backend, ...]:
    """Those of these names, in the workload's order. Raises RequestError with the names that exist."""
    if names is None:
        return workload.backends
    wanted = {name.strip() for name in (names.split(",") if isinstance(names, str) else names)}
    known = [backend.name for backend in workload.backends]
    unknown = sorted(wanted.difference(known))
    if unknown:
        raise RequestError(
            f"There is no backend {unknown[0]!r} in {workload.name}; choose from: {', '.join(known)}."
        )
    if not wanted:
        raise RequestError(f"There is no backend to measure; choose from: {', '.join(known)}.")
    return tuple(backend for backend in workload.backends if backend.name in wanted)


class Sweep:
    """All sizes of one workload within one budget."""

    def __init__(self, workload: Workload, budget: float, seed: int, bar: Progress) -> None:
        self.workload, self.budget, self.seed, self.bar = workload, budget, seed, bar
        self.deadline = 0.0
        """Of the measuring, in monotonic seconds; set once the workers have started."""
        self.crew = Crew(workload, describe_machine())
        self.runs: list[SizeRun] = []
        self.around: list[Timing] = []
        """Seconds of what is not the work: making the data, comparing the results."""

    def run(self, sizes: tuple[int, ...], backends: tuple[Backend, ...]) -> Result:
        """Measure. An interrupt ends it early, and is raised only if nothing was measured yet."""
        interrupted = False
        with (
            tempfile.TemporaryDirectory(prefix="gpulab-compare-", ignore_cleanup_errors=True) as folder,
            borrow(self.crew.machine, backends) as loan,
        ):
            try:
                self.crew.start(backends, loan, folder, self.seed, self.bar.tell)
                self.deadline = time.monotonic() + self.budget
                self.crew.set_deadline(self.deadline + GRACE_SECONDS)
                for number, size in enumerate(sizes):
                    share = self._left() / (len(sizes) - number)
                    self._measure(size, os.path.join(folder, str(number)), time.monotonic() + share)
                    self.bar.advance()
            except KeyboardInterrupt:
                interrupted = True
                if not any(run.measurements for run in self.runs):
                    raise
            finally:
                self.crew.close()
        return self._result(interrupted)

    def _measure(self, size: int, folder: str, deadline: float) -> None:
        self.bar.tell(f"{size:,} {self.workload.unit}")
        refusal = self._refusal(size)
        if refusal is not None:
            self.runs.append(SizeRun(size, "not_run", refusal))
            return
        began = time.monotonic()
        data = self.workload.make_data(size, self.seed)
        parameters = self.workload.parameters(size)
        facts = self.workload.facts(data, parameters)
        needed = self.workload.memory_bytes(size, facts)
        arrays = {name: f"{array.dtype} {array.shape}" for name, array in data.items()}
        run = SizeRun(size, "not_run", arrays=arrays, parameters=parameters, facts=facts, memory_bytes=needed)
        refusal = memory_refusal(needed, memory_room())
        if refusal is not None:
            self.runs.append(replace(run, reason=refusal))
            return
        write_data(self.workload, data, size, made(folder))
        made_seconds = time.monotonic() - began
        pairing = Pairing(self.crew, run, folder, self.bar.tell)
        try:
            pairing.measure(data, deadline)
        finally:
            self.runs.append(pairing.record())
            self.around.append(Timing(size, made_seconds + pairing.check_seconds))

    def _refusal(self, size: int) -> str | None:
        """Why this size should not even be made."""
        if not self.crew.workers:
            return "no backend is left to run it"
        cpu, gpu = (
            [forecast(self.crew.history[name], size) for name in self.crew.names(side)] for side in SIDES
        )
        around = forecast(self.around, size) if len(self.around) > 1 else 0.0  # the first one imports
        return memory_refusal(self.workload.data_bytes(size), memory_room()) or time_refusal(
            cost(cpu, gpu) + around, self._left()
        )

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _result(self, interrupted: bool) -> Result:
        return Result(
            workload=self.workload.name,
            title=self.workload.title,
            teaches=self.workload.teaches,
            unit=self.workload.unit,
            origin="measured",
            date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            gpulab=gpulab.__version__,
            seed=self.seed,
            budget_seconds=self.budget,
            interrupted=interrupted,
            machine=replace(self.crew.machine, gpu=self.crew.device() or self.crew.machine.gpu),
            backends=tuple(self.crew.records.values()),
            runs=tuple(self.runs),
        )
