"""The table as text and as HTML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpulab.compare.result import Result
from gpulab.compare.tables import format_seconds

Change = Callable[[Callable[[dict[str, Any]], Any]], Result]


def test_each_backend_has_a_row_with_its_columns_and_interval(example: Result) -> None:
    lines = str(example.table()).splitlines()
    assert "example, not measured," in lines[0]
    assert (
        " ".join(lines[2].split())
        == "size backend repeats to device compute to host end to end 95 % interval"
    )
    row = next(line for line in lines if line.startswith("10,000  Example brute"))
    assert " ".join(row.split()[3:]) == "12 200 ms 1.60 s 200 ms 2.00 s 1.93 s to 2.07 s"


def test_notes_name_parity_the_race_and_the_speedup_with_its_interval(example: Result) -> None:
    text = str(example.table())
    assert "10,000 points: brute: same result as trees (as it should be)." in text
    assert (
        "race of the CPU backends: Example trees (4 threads) 8.00 s, Example slow-trees (1 thread) 24.0 s"
        in text
    )
    assert "10,000 points: speedup 4 (3.73 to 4.29), transfers included." in text
    assert text.endswith(example.verdict)


def test_a_missing_gpu_side_says_why_in_its_row(record: dict[str, Any]) -> None:
    record["backends"][2].update(state="unavailable", reason="there is no driver")
    for run in record["runs"]:
        run["measurements"].pop()
    text = str(Result.from_dict(record).table())
    assert text.count("not measured: there is no driver") == 1
    assert "as above" in text


def test_nothing_in_a_result_can_put_markup_into_a_page(record: dict[str, Any]) -> None:
    attack = "<img src=x onerror=alert(1)>"
    record["title"] = record["machine"]["cpu"] = record["backends"][0]["title"] = attack
    record["runs"][0]["failures"] = {"slow-trees": attack}
    record["runs"][1].update(state="not_run", reason=attack)
    page = Result.from_dict(record)._repr_html_()
    assert "<img" not in page
    assert page.count("&lt;img") >= 5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (93e-6, "93.0 us"),
        (1.234e-3, "1.23 ms"),
        (0.4561, "456 ms"),
        (7.891, "7.89 s"),
        (123.4, "123 s"),
        (5e-8, "50.0 ns"),
    ],
)
def test_times_have_three_digits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
