"""The table as text and as HTML."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from gpulab.compare.result import Result
from gpulab.compare.results.tables import format_seconds

Change = Callable[[Callable[[dict[str, Any]], Any]], Result]


def without_gpu(record: dict[str, Any]) -> Result:
    record["backends"][2].update(state="unavailable", reason="there is no driver")
    for run in record["runs"]:
        run["measurements"].pop()
    return Result.from_dict(record)


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
        "short race of the CPU backends to choose the best, medians of 2 repeats: "
        "Example trees (4 threads) 8.00 s, Example slow-trees (1 thread) 24.0 s" in text
    )
    assert "10,000 points: speedup 4 (3.73 to 4.29), transfers included." in text
    assert text.endswith(example.verdict)


def test_a_missing_gpu_side_says_why_in_its_row(record: dict[str, Any]) -> None:
    text = str(without_gpu(record).table())
    assert text.count("not measured: there is no driver") == 1
    assert "as above" in text


def test_columns_that_are_empty_everywhere_are_left_out(record: dict[str, Any]) -> None:
    table = without_gpu(record).table()
    assert " ".join(str(table).splitlines()[2].split()) == (
        "size backend repeats compute end to end 95 % interval"
    )
    page = table._repr_html_()
    assert page.count("<th ") == 6
    assert page.count("<td ") == 2 * (6 + 3), "a size: figures of the CPU, and the reason in one wide cell"
    assert page.count("colspan='4'") == 2
    assert "to device" not in page


def test_a_gpu_is_in_the_heading_only_if_it_was_measured(record: dict[str, Any]) -> None:
    assert "Example GPU" in str(Result.from_dict(record).table()).splitlines()[0]
    record["machine"]["simulated"] = True
    result = without_gpu(record)
    assert "on Example CPU, 4 usable cores)" in str(result.table()).splitlines()[0]
    assert "Example GPU" not in result._repr_html_()
    assert "(simulated)" not in result._repr_html_()


def test_headings_stand_over_their_figures_and_only_sentences_wrap(record: dict[str, Any]) -> None:
    page = without_gpu(record)._repr_html_()
    columns: dict[str, list[str]] = {"th": [], "td": []}
    for tag, align, wrap, span in re.findall(
        r"<(th|td) style='text-align: (\w+); white-space: (\w+);[^']*'( colspan)?", page
    ):
        columns[tag].append(align)
        assert wrap == ("normal" if span else "nowrap")
    assert columns["th"] == columns["td"][:6] == ["right", "left", "right", "right", "right", "right"]


def test_the_race_note_and_the_plot_show_the_same_medians(record: dict[str, Any]) -> None:
    for run in record["runs"]:
        run["race"] = {"trees": [1.0, 9.0], "slow-trees": [2.0, 30.0]}
    result = Result.from_dict(record)
    assert "Example trees (4 threads) 5.00 s, Example slow-trees (1 thread) 16.0 s." in str(result.table())
    crosses: dict[Any, Any] = {line.get_label(): line for line in result.plot().axes[0].get_lines()}
    assert list(crosses["other CPU backends (short race)"].get_ydata()) == [16.0, 16.0]


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
