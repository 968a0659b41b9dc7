"""The statistics and the alternation, with clocks and sides that the test sets."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gpulab.compare.backend import Backend
from gpulab.compare.results.records import Sample
from gpulab.compare.timing import (
    ENOUGH_REPEATS,
    Summary,
    alternate,
    block_length,
    is_narrow,
    stall_clock,
    summarize,
    timed,
    undisturbed,
)
from gpulab.compare.workers.worker import Worker
from gpulab.errors import WorkloadError


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (15, 4, 12), (20, 6, 15), (50, 18, 33)],
)
def test_the_interval_has_the_ranks_of_the_binomial_tables(count: int, low: int, high: int) -> None:
    values = [float(v) for v in range(1, count + 1)]
    random.Random(1).shuffle(values)
    assert summarize(values) == Summary((count + 1) / 2, low, high, count)


def test_five_values_have_a_median_but_no_95_percent_interval() -> None:
    assert summarize([5.0, 1.0, 4.0, 2.0, 3.0]) == Summary(3.0, None, None, 5)
    assert summarize([]) is None


def test_the_interval_covers_the_true_median_at_least_95_times_in_100_for_skewed_times() -> None:
    generator = random.Random(7)
    trials, hits = 4000, 0
    for _ in range(trials):
        found = summarize([generator.expovariate(1.0) for _ in range(11)])
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.6931 <= found.high
    assert hits / trials >= 0.95


def test_narrow_means_half_a_width_within_five_percent_of_the_median() -> None:
    assert is_narrow(Summary(1.0, 0.96, 1.05, 9))
    assert not is_narrow(Summary(1.0, 0.94, 1.06, 9))
    assert not is_narrow(Summary(1.0, None, None, 5))
    assert not is_narrow(None)


def test_samples_are_kept_unless_more_than_a_tenth_was_spent_waiting() -> None:
    quiet, edge, loud, unknown = (Sample(1.0, 1.0, stalled_share=s) for s in (0.0, 0.1, 0.11, None))
    assert undisturbed([quiet, edge, loud, unknown]) == [quiet, edge, unknown]


def test_blocks_fill_a_quarter_of_a_second_between_two_and_ten_repeats() -> None:
    assert [block_length(s) for s in (0.0, 0.001, 0.05, 0.2, 30.0)] == [10, 10, 5, 2, 2]


class ScriptedSide:
    """A side that takes the same time at each repeat, on the test's own clock."""

    def __init__(
        self, name: str, seconds: list[float], log: list[tuple[str, int, bool]], now: list[float]
    ) -> None:
        self.name, self.seconds, self.log, self.now = name, seconds, log, now
        self.fails_after: int | None = None

    def block(self, repeats: int, *, warm_up: bool) -> list[Sample]:
        self.log.append((self.name, repeats, warm_up))
        if self.fails_after is not None and len(self.log) > self.fails_after:
            raise WorkloadError(f"{self.name} was killed")
        found = []
        for number in range(repeats):
            seconds = self.seconds[number % len(self.seconds)]
            self.now[0] += seconds
            found.append(Sample(seconds, seconds, stalled_share=0.0))
        return found


def alternated(
    cpu: list[float], gpu: list[float] | None, deadline: float, fails_after: int | None = None
) -> tuple[dict[str, list[Sample]], dict[str, str], list[tuple[str, int, bool]]]:
    log: list[tuple[str, int, bool]] = []
    now = [0.0]
    sides = {"cpu": ScriptedSide("cpu", cpu, log, now)}
    if gpu is not None:
        sides["gpu"] = ScriptedSide("gpu", gpu, log, now)
        sides["gpu"].fails_after = fails_after
    samples: dict[str, list[Sample]] = {}
    failures: dict[str, str] = {}
    expected = {name: side.seconds[0] for name, side in sides.items()}
    alternate(sides, expected, samples, failures, deadline=deadline, clock=lambda: now[0], tell=[].append)
    return samples, failures, log


def test_sides_take_turns_and_each_change_costs_an_untimed_call() -> None:
    samples, failures, log = alternated([1.0], [0.5], deadline=100.0)
    assert [name for name, _, _ in log] == ["cpu", "gpu"] * 3
    assert all(warm_up for _, _, warm_up in log)
    assert {name: len(found) for name, found in samples.items()} == {"cpu": 6, "gpu": 6}
    assert not failures


def test_a_side_alone_needs_no_warm_up_between_its_blocks() -> None:
    _, _, log = alternated([1.0], None, deadline=100.0)
    assert log == [("cpu", 2, False)] * 3


def test_unsteady_times_are_repeated_until_the_deadline_and_steady_ones_are_not() -> None:
    steady, _, _ = alternated([1.0], None, deadline=60.0)
    unsteady, _, _ = alternated([1.0, 2.0], None, deadline=60.0)
    assert len(steady["cpu"]) == ENOUGH_REPEATS
    assert 60 <= sum(sample.end_to_end_seconds for sample in unsteady["cpu"]) <= 63


def test_a_deadline_in_the_past_still_gets_enough_repeats_for_an_interval() -> None:
    samples, _, _ = alternated([1.0, 2.0], [3.0, 1.0], deadline=0.0)
    assert {len(found) for found in samples.values()} == {ENOUGH_REPEATS}


def test_a_side_that_fails_leaves_the_other_running_and_its_reason_behind() -> None:
    samples, failures, _ = alternated([1.0], [1.0], deadline=100.0, fails_after=2)
    assert failures == {"gpu": "gpu was killed"}
    assert len(samples["cpu"]) == ENOUGH_REPEATS
    assert len(samples["gpu"]) == 2


class LoggingBackend(Backend):
    """Notes every call, and takes its own time for each part."""

    name = "logging"
    title = library = remedy = "example"
    modules = ("json",)

    def __init__(self, side: Any = "gpu") -> None:
        self.side = side
        self.log: list[str] = []

    def transfer_in(self, arrays: Any) -> Any:
        self.log.append("in")
        return arrays

    def compute(self, inputs: Any, parameters: Any) -> Any:  # noqa: ARG002
        self.log.append("compute")
        return {"result": 1}

    def transfer_out(self, outputs: Any) -> Any:  # noqa: ARG002
        self.log.append("out")
        return {}

    def synchronize(self) -> None:
        self.log.append("sync")


def test_the_device_is_waited_for_at_both_ends_of_every_part() -> None:
    backend = LoggingBackend()
    sample, _, outputs = timed(backend, {}, {}, lambda: None)
    assert backend.log == ["sync", "in", "sync", "compute", "sync", "out", "sync"]
    assert outputs == {"result": 1}
    parts = (sample.host_to_device_seconds, sample.compute_seconds, sample.device_to_host_seconds)
    assert None not in parts
    assert sum(parts) == pytest.approx(sample.end_to_end_seconds)  # type: ignore[arg-type]


def test_the_cpu_side_has_no_transfers_and_unknown_waiting_is_none() -> None:
    sample, _, _ = timed(LoggingBackend("cpu"), {}, {}, lambda: None)
    assert sample.host_to_device_seconds is None
    assert sample.device_to_host_seconds is None
    assert sample.stalled_share is None


def test_waiting_for_a_cpu_is_counted_over_the_repeat_only() -> None:
    readings = iter([10.0, 10.0 + 1e9])
    sample, _, _ = timed(LoggingBackend(), {}, {}, lambda: next(readings))
    assert sample.stalled_share == pytest.approx(1e9 / sample.end_to_end_seconds)


def test_a_block_computes_as_often_as_asked_plus_the_untimed_call() -> None:
    worker = Worker(LoggingBackend())
    assert len(worker.block(4, warm_up=True)["samples"]) == 4
    assert worker.backend.log.count("compute") == 5  # type: ignore[attr-defined]
    assert len(worker.block(3, warm_up=False)["samples"]) == 3
    assert worker.backend.log.count("compute") == 8  # type: ignore[attr-defined]


def test_the_stall_clock_never_runs_backwards() -> None:
    read = stall_clock()
    first, second = read(), read()
    assert (first is None and second is None) or (
        first is not None and second is not None and second >= first
    )
