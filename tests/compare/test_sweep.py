"""Sizes as people write them, forecasts, refusals and the crossover."""

from __future__ import annotations

from typing import Any

import pytest

from gpulab.compare.sweep import (
    Timing,
    cost,
    crossover,
    forecast,
    memory_refusal,
    parse_sizes,
    racers,
    time_refusal,
)
from gpulab.errors import RequestError


@pytest.mark.parametrize(
    ("given", "sizes"),
    [("1e3,1e4", (1000, 10000)), ([1e4, "1e3", 1000], (1000, 10000)), ((7,), (7,)), ("12", (12,))],
)
def test_sizes_come_out_rising_and_each_once(given: Any, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(given) == sizes


@pytest.mark.parametrize(
    "given", ["many", [0], [-5], [1.5], [1e99], ["nan"], ["inf"], [None], [], "", 7, [[1]]]
)
def test_anything_else_is_refused_with_an_example_or_the_bounds(given: Any) -> None:
    with pytest.raises(RequestError, match=r"size|Sizes"):
        parse_sizes(given)


def test_one_known_size_is_scaled_in_proportion_and_two_by_their_growth() -> None:
    assert forecast([], 10) == 0.0
    assert forecast([Timing(10, 1.0)], 40) == pytest.approx(4.0)
    assert forecast([Timing(10, 1.0), Timing(20, 4.0)], 40) == pytest.approx(16.0)
    assert forecast([Timing(10, 1.0), Timing(20, 100.0)], 40) == pytest.approx(400.0), "at most the square"
    assert forecast([Timing(10, 4.0), Timing(20, 1.0)], 40) == pytest.approx(1.0), "never falling"


def test_the_newest_measurement_of_a_size_counts_and_so_do_the_two_largest_sizes() -> None:
    assert forecast([Timing(10, 1.0), Timing(20, 9.0), Timing(20, 2.0)], 40) == pytest.approx(4.0)
    assert forecast([Timing(20, 2.0), Timing(10, 1.0), Timing(1, 1.0)], 5) == pytest.approx(0.5)


def test_the_cost_counts_check_race_and_paired_repeats() -> None:
    assert cost([1.0], []) == pytest.approx(1 + 6)
    assert cost([1.0, 1.5, 9.0], []) == pytest.approx(11.5 + 2 * 2.5 + 6)
    assert cost([2.0], [0.5]) == pytest.approx(2.5 + 9 * 2.5)


def test_only_backends_near_the_fastest_race_and_never_one_alone() -> None:
    assert racers({"a": 1.0, "b": 1.9, "c": 2.1}) == {"a": 1.0, "b": 1.9}
    assert racers({"a": 1.0, "c": 2.1}) == {}
    assert racers({}) == {}


def test_a_size_is_refused_with_what_it_needs_and_what_is_left() -> None:
    assert time_refusal(9.0, 10.0) is None
    assert "some 2 min and 10 s of the budget" in (time_refusal(130.0, 10.0) or "")
    assert memory_refusal(50, 100) is None
    assert memory_refusal(10**12, None) is None
    assert "4.0 GiB" in (memory_refusal(5 * 2**30, 8 * 2**30) or "")


def test_the_crossover_lies_where_the_ratio_passes_one_for_good() -> None:
    assert crossover([(100, 0.1), (10_000, 10.0)]) == pytest.approx(1000)
    assert crossover([(10, 2.0), (100, 0.5), (1000, 2.0)]) == pytest.approx(316.2, rel=1e-3)
    assert crossover([(10, 2.0), (100, 3.0)]) is None, "already faster at the first size"
    assert crossover([(10, 0.5), (100, 0.9)]) is None
    assert crossover([(10, 2.0), (100, 0.5)]) is None
    assert crossover([]) is None
