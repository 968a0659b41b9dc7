"""Each verdict at its thresholds, and what is said where NVML's figures do not carry one."""

from __future__ import annotations

from typing import Any

import pytest

from gpulab.telemetry.report import DeviceReport, Report
from gpulab.telemetry.reporting import verdict
from gpulab.telemetry.reporting.verdict import Verdict
from gpulab.telemetry.storing.rows import Sample

GIB = 2**30


_UNKNOWN: dict[str, Any] = dict.fromkeys(DeviceReport._fields)
_ALONE: dict[str, Any] = {
    "gpu_percent": 80.0,
    "memory_percent": 40.0,
    "power_watts": 500.0,
    "power_limit_watts": 700.0,
    "memory_total_bytes": 80 * GIB,
    "memory_max_bytes": 10 * GIB,
    "own_max_bytes": 8 * GIB,
    "others": 0,
    "kin": 0,
    "braked": (),
    "unanswered": 0.0,
}


def judged(*, wall: float = 10.0, cpu: float | None = 1.0, reason: str | None = None, **of: Any) -> Verdict:
    """On a cell of `wall` seconds that kept one H100 80 % busy alone, except for what is given."""
    samples = tuple(Sample(100 + i / 5, 80.0, 10 * GIB, 500.0, 50.0, state="ok") for i in range(50))
    device = DeviceReport(
        **{**_UNKNOWN, "uuid": "GPU-a", "label": "GPU 0", "samples": samples, **_ALONE, **of}
    )
    return Report(100.0, 100 + wall, wall, cpu, 50, round(5 * wall), False, (device,), reason).verdict


SHARED: dict[str, Any] = {"others": 1, "own_percent": 30.0}
TWO = tuple(Sample(100 + i, 80.0, GIB, 500.0, 50.0) for i in range(2))


@pytest.mark.parametrize(
    ("below", "at", "figure", "value", "more"),
    [
        ("waiting", "fine", "gpu_percent", verdict.BUSY_PERCENT, {}),
        ("unused", "waiting", "gpu_percent", verdict.UNUSED_PERCENT, {}),
        ("fine", "memory", "memory_max_bytes", verdict.FULL_SHARE * 80 * GIB, {}),
        (
            "waiting",
            "transfer",
            "pcie_tx_bytes_per_second",
            verdict.TRANSFER_BYTES_PER_SECOND,
            {"gpu_percent": 40.0},
        ),
        ("small_launches", "fine", "power_watts", verdict.LITTLE_POWER * 700, {"memory_percent": 5.0}),
        ("small_launches", "fine", "memory_percent", verdict.LITTLE_MEMORY_PERCENT, {"power_watts": 100.0}),
        ("starved", "shared", "gpu_percent", verdict.BUSY_PERCENT, {**SHARED, "cpu": 10.0}),
    ],
)
def test_a_verdict_changes_at_its_threshold(
    below: str, at: str, figure: str, value: float, more: dict[str, Any]
) -> None:
    just_below: dict[str, Any] = {**more, figure: value * 0.999}
    just_above: dict[str, Any] = {**more, figure: value * 1.001}
    assert judged(**just_below).kind == below
    assert judged(**just_above).kind == at


def test_processor_time_tells_a_starved_gpu_from_one_that_waits_for_something_else() -> None:
    assert judged(gpu_percent=30.0, cpu=7.1).kind == "starved"
    assert judged(gpu_percent=30.0, cpu=6.9).kind == "waiting"
    unmeasured = judged(gpu_percent=30.0, cpu=None)
    assert (unmeasured.kind, "cores" in unmeasured.sentence) == ("waiting", False)


def test_a_link_that_others_use_too_is_not_called_this_cells_transfers() -> None:
    said = judged(gpu_percent=60.0, pcie_rx_bytes_per_second=12e9, **SHARED)
    assert said.kind == "unknown"
    assert "Whether it or another process moved them is not told" in said.sentence


def test_a_gpu_that_others_kept_busy_is_not_called_starved_by_the_cpu() -> None:
    said = judged(gpu_percent=100.0, cpu=10.0, **{**SHARED, "others": 2})
    assert said.kind == "shared"
    assert "100 % of the time, this cell's 30 %, the rest of 2 other processes." in said.sentence


def test_memory_that_others_filled_is_not_for_this_cell_to_mend() -> None:
    full: dict[str, Any] = {"memory_max_bytes": 79 * GIB, **SHARED}
    theirs, ours = judged(**full), judged(**full, own_max_bytes=70 * GIB)
    assert "8.0 GiB of it this process's" in theirs.sentence
    assert "smaller parts" not in theirs.sentence
    assert "smaller parts" in ours.sentence


def test_where_processes_are_not_told_the_verdict_leaves_open_who_else_was_there() -> None:
    said = judged(others=None, own_max_bytes=None, own_growth_bytes=None)
    assert said.kind == "fine"
    assert said.sentence.endswith("Whether others used it as well is not known here.")


@pytest.mark.parametrize(
    ("words", "of"),
    [
        ("Too short", {"wall": 0.99}),
        ("Too few samples to tell (2 of 50 due)", {"samples": TWO}),
        ("utilization is not told", {"gpu_percent": None}),
        ("whose share was whose", {"others": 1}),
        ("of the same account", {"own_max_bytes": 0, "others": 1, "kin": 1}),
    ],
)
def test_it_says_that_it_cannot_tell_and_why(words: str, of: dict[str, Any]) -> None:
    said = judged(**of)
    assert said.kind == "unknown"
    assert words in said.sentence


def test_clocks_held_down_for_a_fifth_of_the_time_are_told_with_the_verdict() -> None:
    assert "held down 40 % of the time (thermal)" in str(judged(braked=(("thermal", 0.4),)))
    assert "held down" not in str(judged(braked=(("thermal", 0.1),)))
