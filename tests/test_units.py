"""Bytes and durations, as people write and read them."""

from __future__ import annotations

import math

import pytest

from gpulab.errors import RequestError
from gpulab.units import format_bytes, format_duration, parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 * 2**30),
        ("8gib", 8 * 2**30),
        (" 8 GiB ", 8 * 2**30),
        ("8GB", 8 * 10**9),
        ("512m", 512 * 2**20),
        ("1.5k", 1536),
        ("2TB", 2 * 10**12),
        ("1e3", 1000),
        ("7", 7),
        ("7b", 7),
        (4096, 4096),
    ],
)
def test_sizes_are_read_as_written(text: int | str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    ["8Gigs", "", "GiB", "-1GiB", "8 G i B", "0", "0.2", "1e", "eight", 0, -5, "1e400", math.inf, math.nan],
)
def test_a_size_that_is_none_is_refused_with_an_example(text: int | str) -> None:
    with pytest.raises(RequestError, match="8GiB") as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("15m", 900),
        ("15 min", 900),
        ("1h", 3600),
        ("2D", 172800),
        ("250ms", 0.25),
        (3, 3),
    ],
)
def test_durations_are_read_as_written(text: str | int, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["soon", "1y", "", "-3s", -3, "1e400h", math.inf, math.nan])
def test_a_duration_that_is_none_is_refused_with_an_example(text: str | int) -> None:
    with pytest.raises(RequestError, match="90s"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "n/a"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (8 * 2**30, "8.0 GiB"),
        (3 * 2**40, "3.0 TiB"),
        (-(2**20), "-1.0 MiB"),
    ],
)
def test_sizes_are_printed_for_people(size: int | None, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "n/a"),
        (0.85, "850 ms"),
        (12, "12 s"),
        (59.4, "59 s"),
        (300, "5 min"),
        (11100, "3 h 05 min"),
        (187200, "2 d 4 h"),
    ],
)
def test_durations_are_printed_for_people(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text
