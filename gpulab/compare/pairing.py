"""One size: results checked, CPU backends raced, the best of them measured in turn with the GPU's."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpulab.compare.conditions.strangers import around
from gpulab.compare.results.decoding import clean
from gpulab.compare.results.records import Measurement, Parity, Sample, SizeRun, Strangers
from gpulab.compare.sweep import RACE_REPEATS, Timing, racers
from gpulab.compare.timing import alternate, summarize
from gpulab.compare.workers.crew import Crew, made
from gpulab.errors import WorkloadError
from gpulab.hardware.observe import observe

if TYPE_CHECKING:
    from gpulab.compare.arrays import Arrays

__all__ = ["Pairing"]


class Pairing:
    """What has been found out about one size so far, so that an interrupt keeps it."""

    def __init__(self, crew: Crew, run: SizeRun, folder: str, tell: Callable[[str], None]) -> None:
        self.crew, self.start, self.folder, self.tell = crew, run, folder, tell
        self.seconds: dict[str, float] = {}
        """Of one call; its keys are the backends that are still in the run."""
        self.results: dict[str, Any] = {}
        self.race: dict[str, tuple[float, ...]] = {}
        self.samples: dict[str, list[Sample]] = {}
        self.failures: dict[str, str] = {}
        self.placement: dict[str, str] = {}
        self.fell_back: dict[str, tuple[str, ...]] = {}
        self.strangers: dict[str, Strangers] = {}
        self.parity: list[Parity] = []
        self.best_cpu: str | None = None
        self.check_seconds = 0.0
        self.done = False

    def measure(self, data: Arrays, deadline: float) -> None:
        """All steps. `deadline` in monotonic seconds ends the repeats, not the steps before them."""
        for name in list(self.crew.workers):
            self._verify(name)
        self._find_best_cpu()
        self._check(data)
        self._pair(deadline)
        self.done = True

    def record(self) -> SizeRun:
        """What is known now."""
        run = replace(
            self.start,
            best_cpu=self.best_cpu,
            race=self.race,
            measurements=tuple(Measurement(name, tuple(samples)) for name, samples in self.samples.items()),
            parity=tuple(self.parity),
            placement=self.placement,
            fell_back={name: calls for name, calls in self.fell_back.items() if calls},
            strangers=self.strangers,
            failures=self.failures,
        )
        if not self.done:
            return replace(run, state="interrupted", reason="interrupted while it was measured")
        if not self.samples:
            reason = next(iter(self.failures.values()), "no backend got through it")
            return replace(run, state="not_run", reason=reason)
        return replace(run, state="measured")

    def _verify(self, name: str) -> None:
        """The first call at this size is no sample: it warms up, and proves where and what was computed."""
        worker, folder = self.crew.workers[name], made(os.path.join(self.folder, name))
        self._tell(name, "first call")
        try:
            worker.ask("load", folder=self.folder, parameters=self.start.parameters)
            answer = worker.ask("verify", folder=folder)
        except WorkloadError as error:
            self._fail(name, str(error))
            return
        if self.crew.records[name].side == "gpu":
            self.placement[name] = answer["not_placed"] or ""
            self.fell_back[name] = tuple(map(clean, answer["fell_back"]))
        self.results[name] = self.crew.workload.kept(folder)
        self._learn(name, answer["seconds"])

    def _find_best_cpu(self) -> None:
        """A short race: the fastest of the CPU backends is the baseline, whichever it is at this size."""
        seconds = {name: self.seconds[name] for name in self._running("cpu")}
        for name in racers(seconds):
            self._tell(name, "race")
            try:
                samples = self.crew.workers[name].block(RACE_REPEATS, warm_up=False)
            except WorkloadError as error:
                self._fail(name, str(error))
                continue
            self.race[name] = tuple(sample.end_to_end_seconds for sample in samples)
            seconds[name] = statistics.median(self.race[name])
        self.best_cpu = min(self._running("cpu"), key=lambda name: seconds[name], default=None)

    def _check(self, data: Arrays) -> None:
        """Every other backend's result against the best CPU backend's."""
        began = time.monotonic()
        for name in self.seconds:
            if self.best_cpu is None or name == self.best_cpu:
                continue
            self._tell(name, "compared")
            reference, candidate = self.results[self.best_cpu], self.results[name]
            try:
                found = self.crew.workload.check(data, self.start.parameters, reference, candidate)
            except (KeyError, IndexError, ValueError, TypeError) as error:
                found = Parity("different", f"the result has another form ({error})")
            self.parity.append(replace(found, reference=self.best_cpu, candidate=name))
        self.check_seconds = time.monotonic() - began

    def _pair(self, deadline: float) -> None:
        baseline = [] if self.best_cpu is None else [self.best_cpu]
        sides = {name: self.crew.workers[name] for name in [*baseline, *self._running("gpu")]}
        failures: dict[str, str] = {}
        on_gpu = {name: sides[name] for name in self._running("gpu")}
        before = observe(max_age=0) if on_gpu else None
        alternate(sides, self.seconds, self.samples, failures, deadline=deadline, tell=self.tell)
        if before is not None:
            own = {self.crew.workers[name].pid for name in self.crew.names("gpu")}
            self.strangers = around(on_gpu, own, before, observe(max_age=0))
        for name, reason in failures.items():
            self._fail(name, reason)
        for name, samples in self.samples.items():
            summary = summarize([sample.end_to_end_seconds for sample in samples])
            if summary is not None:
                self._learn(name, summary.median)

    def _running(self, side: str) -> list[str]:
        return [name for name in self.seconds if self.crew.records[name].side == side]

    def _fail(self, name: str, reason: str) -> None:
        self.failures[name] = reason
        self.seconds.pop(name, None)
        self.crew.fail(name, reason)

    def _learn(self, name: str, seconds: float) -> None:
        if name in self.crew.workers:
            self.seconds[name] = seconds
        self.crew.history[name].append(Timing(self.start.size, seconds))

    def _tell(self, name: str, step: str) -> None:
        self.tell(f"{self.start.size:,}: {name}, {step}")
