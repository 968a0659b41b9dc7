"""The paired measurement: one repeat, the alternation of the sides, and what the samples say.

The clock is the host's, with the device synchronised at both ends. The headline is the median with
an interval that assumes nothing about the distribution.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gpulab.compare.conditions.container import container_files, lines
from gpulab.compare.results.records import Sample
from gpulab.errors import WorkloadError

if TYPE_CHECKING:
    from gpulab.compare.backend import Backend, Parameters

__all__ = [
    "DISTURBED_SHARE",
    "ENOUGH_REPEATS",
    "MOST_REPEATS",
    "Side",
    "Summary",
    "alternate",
    "block_length",
    "is_narrow",
    "pressure_file",
    "stall_clock",
    "summarize",
    "timed",
    "undisturbed",
]

ENOUGH_REPEATS = 6
"""The fewest samples for which a 95 % interval of the median exists at all."""
MOST_REPEATS = 200
NARROW_SHARE = 0.05
"""An interval is narrow when half its width is within this share of the median."""
DISTURBED_SHARE = 0.10
BLOCK_SECONDS = 0.25


class Summary(NamedTuple):
    """Samples in short; `low` and `high` bound the median with at least 95 % confidence."""

    median: float
    low: float | None
    high: float | None
    repeats: int


def summarize(values: Sequence[float]) -> Summary | None:
    """Median and its order-statistic interval; no interval below six values, None without values.

    The k-th smallest and k-th largest value bound the median unless fewer than k values fall on one
    side of it, which happens as often as fewer than k heads in n throws of a coin.
    """
    if not values:
        return None
    ordered, count = sorted(values), len(values)
    median = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    rank, tail = 0, 0.5**count
    while tail <= 0.025 and rank < count // 2:
        rank += 1
        tail += math.comb(count, rank) * 0.5**count
    if rank == 0:
        return Summary(median, None, None, count)
    return Summary(median, ordered[rank - 1], ordered[count - rank], count)


def is_narrow(summary: Summary | None) -> bool:
    """Whether more repeats would say nothing new."""
    if summary is None or summary.low is None or summary.high is None:
        return False
    return (summary.high - summary.low) / 2 <= NARROW_SHARE * summary.median


def undisturbed(samples: Iterable[Sample]) -> list[Sample]:
    """The samples during which nothing is known to have waited for a CPU for long, or disturbed the GPU.

    Where waiting is unknown their times can still be shown, but no speedup: see `judgement`.
    """
    quiet = (s for s in samples if s.stalled_share is None or s.stalled_share <= DISTURBED_SHARE)
    return [sample for sample in quiet if not sample.disturbance]


def pressure_file() -> str | None:
    """Where the kernel says how long tasks waited for a CPU; None where it does not.

    The own container's file first: on a shared machine some task somewhere is always waiting.
    """
    for path in [*container_files("cpu.pressure", "cpu")[:1], "/proc/pressure/cpu"]:
        if _waited(path) is not None:
            return path
    return None


def stall_clock() -> Callable[[], float | None]:
    """A clock of the seconds in which some task had to wait for a CPU; it reads None where unknown."""
    path = pressure_file()
    return lambda: None if path is None else _waited(path)


def _waited(path: str) -> float | None:
    first = next(lines(path), "")
    total = first.rpartition("total=")[2]
    return int(total) / 1e6 if first.startswith("some") and total.isdecimal() else None


def timed(
    backend: Backend, prepared: Any, parameters: Parameters, stalled: Callable[[], float | None]
) -> tuple[Sample, Any, Any]:
    """One repeat, its inputs and its outputs, both still where they were computed.

    Collection of garbage is off meanwhile, as in timeit: it would fall on one side by chance.
    """
    clock = time.perf_counter
    given = backend.fresh(prepared)
    backend.synchronize()
    gc.disable()
    try:
        waited_before = stalled()
        start = clock()
        inputs = backend.transfer_in(given)
        backend.synchronize()
        there = clock()
        outputs = backend.compute(inputs, parameters)
        backend.synchronize()
        computed = clock()
        backend.transfer_out(outputs)
        backend.synchronize()
        end = clock()
        waited_after = stalled()
    finally:
        gc.enable()
    share = None
    if waited_before is not None and waited_after is not None and end > start:
        share = max(0.0, waited_after - waited_before) / (end - start)
    transfers = backend.side == "gpu"
    sample = Sample(
        end_to_end_seconds=end - start,
        compute_seconds=computed - there,
        host_to_device_seconds=there - start if transfers else None,
        device_to_host_seconds=end - computed if transfers else None,
        stalled_share=share,
    )
    return sample, inputs, outputs


class Side(Protocol):
    """A worker, as the alternation sees it."""

    name: str

    def block(self, repeats: int, *, warm_up: bool) -> list[Sample]:
        """So many repeats in a row, after one untimed call if asked. Raises WorkloadError."""
        ...


def block_length(seconds: float) -> int:
    """Repeats in a row: enough to fill a quarter of a second, at least two, at most ten."""
    return max(2, min(10, round(BLOCK_SECONDS / seconds) if seconds > 0 else 10))


def alternate(
    sides: Mapping[str, Side],
    expected_seconds: Mapping[str, float],
    samples: dict[str, list[Sample]],
    failures: dict[str, str],
    *,
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
    tell: Callable[[str], None],
) -> None:
    """Measure the sides in turn, block by block, until their intervals are narrow or time is up.

    Each side gets at least ENOUGH_REPEATS, past the deadline if need be: a forecast has allowed the
    size. Samples go into `samples` as they come, so an interrupt loses at most one block; a side that
    fails goes into `failures` and the others go on.
    """
    running = dict(sides)
    while running:
        for name, side in list(running.items()):
            tell(name)
            try:
                block = side.block(block_length(expected_seconds[name]), warm_up=len(running) > 1)
                samples.setdefault(name, []).extend(block)
            except WorkloadError as error:
                failures[name] = str(error)
                del running[name]
        if all(_is_done(samples[name], clock() >= deadline) for name in running):
            return


def _is_done(samples: list[Sample], time_is_up: bool) -> bool:
    kept = undisturbed(samples)
    if len(samples) >= MOST_REPEATS or (time_is_up and len(samples) >= ENOUGH_REPEATS):
        return True
    return is_narrow(summarize([s.end_to_end_seconds for s in kept]))
