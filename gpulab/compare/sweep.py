"""Sizes, budgets and forecasts of a sweep, and the size from which the other side is faster."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from gpulab.compare.timing import ENOUGH_REPEATS
from gpulab.errors import RequestError
from gpulab.units import format_bytes, format_duration

__all__ = [
    "Timing",
    "cost",
    "crossover",
    "forecast",
    "memory_refusal",
    "parse_sizes",
    "racers",
    "time_refusal",
]

K = TypeVar("K", bound=Hashable)

LARGEST_SIZE = 10**12
RACE_REPEATS = 2


class Timing(NamedTuple):
    """How long one call took at one size."""

    size: int
    seconds: float


def parse_sizes(sizes: Iterable[int | float | str]) -> tuple[int, ...]:
    """Whole numbers, each once, rising; `1e4` is read as 10000. Raises RequestError."""
    if isinstance(sizes, str):
        sizes = sizes.split(",")
    try:
        parsed = sorted({_parse_size(size) for size in sizes})
    except TypeError:
        raise RequestError(
            f"Sizes are a list of numbers, not {sizes!r}; write for example [1000, 10000]."
        ) from None
    if not parsed:
        raise RequestError("There is no size to measure; write for example 1e3,1e4.")
    return tuple(parsed)


def _parse_size(size: int | float | str) -> int:
    try:
        number = float(size)
    except (TypeError, ValueError):
        raise RequestError(f"{size!r} is not a size; write a whole number, for example 1e4.") from None
    if not 1 <= number <= LARGEST_SIZE or number != int(number):
        raise RequestError(f"A size must be a whole number from 1 to {LARGEST_SIZE:.0e}, not {size!r}.")
    return int(number)


def forecast(history: Iterable[Timing], size: int) -> float:
    """Seconds that a call should take at `size`, from those at other sizes; the newest of a size counts.

    From the two largest, with the power of their growth, between 0 and 2; from one in proportion; from
    none 0, for what is unknown is no reason to refuse.
    """
    known = sorted({timing.size: timing.seconds for timing in history}.items())
    if not known:
        return 0.0
    (last, seconds), power = known[-1], 1.0
    if len(known) > 1:
        before, earlier = known[-2]
        growth = math.log(max(seconds, 1e-9) / max(earlier, 1e-9)) / math.log(last / before)
        power = min(2.0, max(0.0, growth))
    return float(seconds * (size / last) ** power)


def cost(cpu: Sequence[float], gpu: Sequence[float]) -> float:
    """Seconds of a whole size, from those of one call of each backend.

    Each is called once to be checked; the CPU backends race; the fastest of them and all of the GPU's
    get their repeats, with an untimed call before each block of two if there is more than one side.
    """
    checked = sum(cpu) + sum(gpu)
    raced = RACE_REPEATS * sum(racers(dict(enumerate(cpu))).values())
    blocks = ENOUGH_REPEATS * (1.5 if gpu else 1.0)
    return checked + raced + blocks * (min(cpu, default=0.0) + sum(gpu))


def racers(seconds: Mapping[K, float]) -> dict[K, float]:
    """Those worth racing after one call each: within twice the fastest. None if only one is."""
    limit = 2 * min(seconds.values(), default=0.0)
    close = {name: value for name, value in seconds.items() if value <= limit}
    return close if len(close) > 1 else {}


def time_refusal(forecast_seconds: float, seconds_left: float) -> str | None:
    """Why this size is not begun, or None."""
    if forecast_seconds <= seconds_left:
        return None
    left = format_duration(max(0.0, seconds_left))
    return (
        f"it would take some {format_duration(forecast_seconds)} and {left} of the budget are left; "
        "allow a larger budget"
    )


def memory_refusal(needed: int, room: int | None) -> str | None:
    """Why this size does not fit, or None; it may have half of what is free, for others live here too."""
    if room is None or needed <= room // 2:
        return None
    return (
        f"it would need some {format_bytes(needed)}, and half of the memory that is free here is "
        f"{format_bytes(room // 2)}; choose a smaller size"
    )


def crossover(points: Sequence[tuple[int, float]]) -> float | None:
    """The size at which the ratio CPU / GPU passes 1 for good; None if that is not between two of the points.

    `points` are (size, ratio), sizes rising. Between them a straight line in both logarithms.
    """
    for (size, ratio), (next_size, next_ratio) in reversed(list(itertools.pairwise(points))):
        if next_ratio <= 1.0:
            return None
        if ratio <= 1.0:
            share = math.log(1.0 / ratio) / math.log(next_ratio / ratio)
            return float(size * (next_size / size) ** share)
    return None
