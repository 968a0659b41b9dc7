"""Sizes, budgets and forecasts of a sweep, and the size from which the other side is faster."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpulab.compare.timing import ENOUGH_REPEATS
from gpulab.errors import RequestError
from gpulab.units import format_bytes, format_duration

__all__ = ["Timing", "cost", "crossover", "forecast", "memory_refusal", "parse_sizes", "time_refusal"]

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


def forecast(history: Sequence[Timing], size: int) -> float:
    """Seconds that a call should take at `size`, from smaller sizes.

    One earlier size: as if the time grew as the size does, which is too little for most work, so that
    nothing is refused wrongly. Two: with the power of their growth, between 0 and 2.
    """
    if not history:
        return 0.0
    last, power = history[-1], 1.0
    before = next((timing for timing in reversed(history) if timing.size < last.size), None)
    if before is not None:
        growth = math.log(max(last.seconds, 1e-9) / max(before.seconds, 1e-9))
        power = min(2.0, max(0.0, growth / math.log(last.size / before.size)))
    return float(last.seconds * (size / last.size) ** power)


def cost(seconds_per_call: Sequence[float], racing: int) -> float:
    """Seconds of a whole size: check and race of every backend, then the paired repeats of the rest.

    `seconds_per_call` in any order; `racing` of them are CPU backends, of which one stays.
    """
    calls = 1 + (RACE_REPEATS if racing > 1 else 0)
    return sum(seconds_per_call) * calls + min(seconds_per_call, default=0.0) * ENOUGH_REPEATS


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
