"""What a result says, worked out from made-up samples, and what it refuses to say."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpulab
from gpulab.compare.result import Result
from gpulab.errors import RequestError, WorkloadError

Change = Callable[[Callable[[dict[str, Any]], Any]], Result]
GPU, CPU = "brute", "trees"


def test_the_speedup_is_the_ratio_of_end_to_end_medians_at_the_largest_size(example: Result) -> None:
    assert example.speedup is not None
    assert example.speedup.value == pytest.approx(4.0)
    assert (example.speedup.size, example.speedup.cpu, example.speedup.gpu) == (10_000, CPU, GPU)
    assert example.speedup.low < 4.0 < example.speedup.high
    assert example.speedup_reason is None


def test_its_interval_combines_both_intervals_at_their_worst(example: Result) -> None:
    cpu, gpu = example.summary(CPU, 10_000), example.summary(GPU, 10_000)
    assert example.speedup is not None
    assert cpu is not None
    assert gpu is not None
    assert example.speedup.low == pytest.approx(cpu.low / gpu.high)  # type: ignore[operator]
    assert example.speedup.high == pytest.approx(cpu.high / gpu.low)  # type: ignore[operator]


def test_columns_have_medians_of_their_own(example: Result) -> None:
    compute, there = example.summary(GPU, 10_000, "compute"), example.summary(GPU, 10_000, "host_to_device")
    assert compute is not None
    assert there is not None
    assert (compute.median, there.median) == (pytest.approx(1.6), pytest.approx(0.2))
    assert example.summary(CPU, 10_000, "host_to_device") is None


def test_it_pays_from_the_crossover_on_and_after_the_slower_start_is_made_up(example: Result) -> None:
    assert example.crossover == pytest.approx(1000)
    # The GPU starts 3 + 8 s of import and first call behind, the CPU 1 s; then it gains 6 s a call.
    assert example.break_even_calls == 2
    assert example.verdict.startswith("Example, not measured: The GPU pays: at 10,000 points")
    assert "4 times as fast as Example trees (4 threads)" in example.verdict
    assert "transfers included" in example.verdict


def test_a_small_gain_is_no_clear_difference_and_a_loss_does_not_pay(
    changed: Change, make_samples: Callable[..., Any]
) -> None:
    def gpu_takes(seconds: float) -> Callable[[dict[str, Any]], Any]:
        return lambda run: run["measurements"][1].update(samples=make_samples(seconds, gpu=True))

    assert "No clear difference" in changed(gpu_takes(7.5)).verdict
    assert "The GPU does not pay" in changed(gpu_takes(32.0)).verdict
    assert changed(gpu_takes(32.0)).break_even_calls is None


def set_parity(run: dict[str, Any], **values: Any) -> None:
    run["parity"][0].update(values)


REFUSALS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "different results": (
        lambda run: set_parity(run, state="different", message="3 labels differ"),
        "the two sides disagree: 3 labels differ",
    ),
    "no comparison": (lambda run: run.update(parity=[]), "were not compared"),
    "on the CPU": (
        lambda run: run.update(placement={GPU: "the result lies in the host's memory"}),
        "not proved that brute ran on the GPU: the result lies",
    ),
    "unknown placement": (lambda run: run.update(placement={}), "its placement was not checked"),
    "no baseline": (lambda run: run.update(best_cpu=None), "no CPU backend"),
    "no GPU side": (
        lambda run: run.update(
            measurements=run["measurements"][:1], failures={GPU: "brute ran out of memory"}
        ),
        "brute ran out of memory",
    ),
    "untimed transfers": (
        lambda run: [s.update(host_to_device_seconds=None) for s in run["measurements"][1]["samples"]],
        "transfers were not timed",
    ),
    "neighbours": (
        lambda run: [s.update(stalled_share=0.5) for s in run["measurements"][0]["samples"][:7]],
        "disturbed 7 of 12 repeats of trees",
    ),
    "unknown disturbance": (
        lambda run: run["measurements"][1]["samples"][3].update(stalled_share=None),
        "it is not known whether other work disturbed the CPUs",
    ),
    "a stranger who came": (
        lambda run: run.update(strangers={GPU: {"before": 0, "after": 1}}),
        "another process computed on the GPU of brute; measure again on a GPU of your own",
    ),
    "strangers who left": (
        lambda run: run.update(strangers={GPU: {"before": 3, "after": 0}}),
        "3 other processes computed on the GPU of brute",
    ),
    "strangers never counted": (
        lambda run: run.update(strangers={}),
        "not known whether other processes computed on the GPU of brute: it was not recorded",
    ),
    "strangers not listed": (
        lambda run: run.update(strangers={GPU: {"before": 0, "after": None, "reason": "the driver hung"}}),
        "not known whether other processes computed on the GPU of brute: the driver hung",
    ),
    "too few": (
        lambda run: run["measurements"][1].update(samples=run["measurements"][1]["samples"][:5]),
        "fewer than 6 undisturbed repeats",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_without_its_proof_there_is_a_reason_and_no_speedup(case: str, changed: Change) -> None:
    edit, reason = REFUSALS[case]
    result = changed(edit)
    assert result.speedup_at(10_000) is None
    assert reason in str(result.reason_at(10_000))
    assert "10,000 points: speedup" not in str(result.table())
    assert reason not in result.verdict, "there the smaller size speaks"


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("machine/pressure", None, "it is not known whether other work disturbed the CPUs"),
        ("machine/gpu", None, "it is not known which GPU was measured"),
        ("backends/0/threads", None, "it is not known how many threads trees used"),
        ("backends/0/state", "unavailable", "trees is said to be unavailable"),
        ("backends/2/state", "unavailable", "brute is said to be unavailable"),
    ],
)
def test_what_every_size_needs_is_the_reason_of_the_verdict_when_it_is_missing(
    record: dict[str, Any], path: str, value: Any, reason: str
) -> None:
    result = Result.from_dict(broken(record, path, value))
    assert result.speedup is None
    assert result.verdict.startswith("Example, not measured: No verdict on the GPU: ")
    assert reason in result.verdict
    assert str(result.table()).count(f"no speedup is stated: {result.speedup_reason}.") == 2


def test_a_worker_that_failed_later_leaves_its_earlier_sizes_valid(record: dict[str, Any]) -> None:
    record["backends"][2].update(state="failed", reason="it was killed at a larger size")
    assert Result.from_dict(record).speedup is not None


def test_a_result_of_a_kernel_that_tells_no_waiting_has_medians_and_no_speedup(
    record: dict[str, Any],
) -> None:
    record["machine"]["pressure"] = None
    for run in record["runs"]:
        for measurement in run["measurements"]:
            for sample in measurement["samples"]:
                sample["stalled_share"] = None
    result = Result.from_dict(record)
    summary = result.summary(CPU, 100)
    assert summary is not None
    assert (summary.median, summary.repeats) == (pytest.approx(1.0), 12)
    assert result.crossover is None
    assert "times as fast" not in result.verdict
    assert "it is not known whether other work disturbed the CPUs" in result.verdict


def test_the_smaller_size_still_speaks_when_the_larger_one_cannot(changed: Change) -> None:
    result = changed(lambda run: run.update(parity=[]))
    assert result.speedup is not None
    assert (result.speedup.size, result.speedup.value) == (100, pytest.approx(0.25))
    assert "does not pay" in result.verdict


def test_a_tie_is_good_enough(changed: Change) -> None:
    assert changed(lambda run: set_parity(run, state="tie")).speedup is not None


def test_disturbed_samples_are_left_out_and_counted(changed: Change) -> None:
    def disturb(run: dict[str, Any]) -> None:
        for sample in run["measurements"][0]["samples"][:4]:
            sample.update(end_to_end_seconds=800.0, stalled_share=0.9)

    result = changed(disturb)
    summary = result.summary(CPU, 10_000)
    assert summary is not None
    assert summary.repeats == 8
    assert summary.median < 10
    assert "8 of 12" in str(result.table())


def test_a_simulated_machine_never_has_a_speedup(record: dict[str, Any]) -> None:
    record["machine"]["simulated"] = True
    result = Result.from_dict(record)
    assert result.speedup is None
    assert "simulated GPUs cannot compute" in result.verdict


def test_a_saved_result_comes_back_the_same_and_an_example_stays_one(example: Result, tmp_path: Path) -> None:
    example.save(tmp_path / "r.json")
    loaded = gpulab.compare.load(tmp_path / "r.json")
    assert loaded == example
    assert loaded.to_dict() == json.loads((tmp_path / "r.json").read_text())
    assert [path.name for path in tmp_path.glob("r.json*")] == ["r.json"]


@pytest.mark.parametrize("target", ["missing/r.json", "folder"])
def test_a_result_that_cannot_be_saved_says_where_and_why_and_leaves_nothing_behind(
    example: Result, tmp_path: Path, target: str
) -> None:
    place = tmp_path / "results"
    (place / "folder").mkdir(parents=True)
    with pytest.raises(WorkloadError) as failure:
        example.save(place / target)
    assert f"could not be saved as {place / target} (" in str(failure.value)
    assert "save it under a file name in a folder that exists" in str(failure.value)
    assert [path.name for path in place.rglob("*")] == ["folder"]
    example.save(place / "folder" / "r.json")


def test_a_failed_save_leaves_the_older_file_as_it_was(example: Result, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    example.save(path)
    before = path.read_bytes()
    changed = replace(example, seed=example.seed + 1)
    (tmp_path / f"r.json.{os.getpid()}").mkdir()  # stands where the new file would be prepared
    with pytest.raises(WorkloadError):
        changed.save(path)
    assert path.read_bytes() == before


def test_what_was_measured_is_recorded_once_it_is_loaded(record: dict[str, Any], tmp_path: Path) -> None:
    record["origin"] = "measured"
    Result.from_dict(record).save(tmp_path / "r.json")
    loaded = Result.load(tmp_path / "r.json")
    assert loaded.origin == "recorded"
    assert "recorded 2000-01-01" in str(loaded.table())


def broken(record: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    *way, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    entry: Any = record
    for part in way:
        entry = entry[part]
    entry[last] = value
    return record


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("schema", "gpulab.compare/3", "upgrade gpulab"),
        ("schema", "other/1", "has no schema"),
        ("extra", 1, "unknown entry 'extra'"),
        ("origin", "genuine", r"origin should be one of 'measured', 'recorded', 'example'"),
        ("seed", "0", r"the result\.seed should be a whole number, but is '0'"),
        ("interrupted", 1, "true or false"),
        ("machine", None, r"machine should be an object"),
        ("runs", {}, "runs should be a list"),
        ("runs/0/size", True, "whole number"),
        ("runs/0/measurements/0/samples/0/end_to_end_seconds", "1", "finite number"),
        ("runs/0/measurements/0/samples/0/end_to_end_seconds", -1.0, "from 1e-09 to 1e.09, but is '-1.0'"),
        ("runs/0/measurements/0/samples/0/end_to_end_seconds", float("nan"), "finite number"),
        ("runs/0/measurements/0/backend", "stranger", "'stranger' that it does not describe"),
        ("runs/0/best_cpu", "stranger", "'stranger' that it does not describe"),
        ("runs/0/size", 10_000, "do not rise"),
        ("backends/0/side", "tpu", "one of 'cpu', 'gpu'"),
        ("runs/0/measurements/0/samples/0/end_to_end_seconds", 10**400, "more than 18 digits"),
        ("runs/0/measurements/0/samples/0/end_to_end_seconds", 0, "from 1e-09 to"),
        ("runs/0/measurements/0/samples/0/end_to_end_seconds", 5e-324, "from 1e-09 to"),
        ("runs/0/measurements/0/samples/0/end_to_end_seconds", float("inf"), "but is 'inf'"),
        ("runs/0/measurements/1/samples/0/device_to_host_seconds", -1e-9, "from 0 to"),
        ("runs/0/measurements/1/samples/0/stalled_share", -0.5, "from 0 to"),
        ("runs/0/race/trees/0", -1.0, r"race\.trees\[0\] should be a finite number from"),
        ("runs/1/size", 10**400, "more than 18 digits"),
        pytest.param("runs/1/size", 10**5000, "more than 18 digits", id="a size too large to print"),
        ("runs/0/size", 0, "from 1 to"),
        ("runs/0/size", -5, "from 1 to"),
        ("runs/0/memory_bytes", -1, "from 0 to"),
        ("runs/0/facts/neighbours_per_point", 10**400, "more than 18 digits"),
        ("runs/0/strangers/brute/before", -1, "from 0 to"),
        ("runs/0/strangers/nobody", {"before": 0, "after": 0}, "'nobody' that it does not describe"),
        ("runs/0/placement/nobody", "", "'nobody' that it does not describe"),
        ("runs/0/best_cpu", GPU, "'brute' as its best CPU backend"),
        ("runs/0/measurements/1/backend", CPU, "measures the backend 'trees' twice"),
        ("backends/1/name", CPU, "describes the backend 'trees' twice"),
        ("backends/2/first_call_seconds", 1e308, r"first_call_seconds should be .* but is '1e\+308'"),
        ("backends/2/warm_call_seconds", -1, "warm_call_seconds should be"),
        ("backends/2/import_seconds", -1, "import_seconds should be"),
        ("backends/0/threads", 0, "threads should be a whole number from 1 to"),
        ("budget_seconds", float("nan"), "budget_seconds should be"),
        ("title", "\ud800", "title should be text without control characters"),
        ("title", "\x1b[2J", "title should be text without control characters"),
        ("title", "x" * 4001, "text of at most 4,000 characters"),
        ("runs/0/failures", {"\ud800": ""}, "a name in .*failures should be text without"),
        ("machine/cpu", [[]], "text, but is a list"),
    ],
)
def test_a_tampered_result_is_refused_with_the_place(
    record: dict[str, Any], path: str, value: Any, message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        Result.from_dict(broken(record, path, value))


def test_a_missing_entry_is_named(record: dict[str, Any]) -> None:
    del record["machine"]["platform"]
    with pytest.raises(WorkloadError, match=r"machine\.platform should be present"):
        Result.from_dict(record)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "not json",
        "[]",
        "null",
        '"text"',
        "[" * 100_000,
        '{"schema": NaN}',
        f'{{"schema": {"9" * 5000}}}',
        '{"schema": "gpulab.compare/2", "seed": Infinity}',
        b"\xff\xfe\x00".decode("latin1"),
    ],
)
def test_a_file_that_is_no_result_is_one_sentence(content: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(WorkloadError, match=r"not JSON|not a result"):
        Result.load(tmp_path / "r.json")


def test_a_file_that_holds_a_pickle_is_not_executed(tmp_path: Path) -> None:
    target = tmp_path / "executed"
    (tmp_path / "r.json").write_bytes(b"cos\nsystem\n(S'touch " + str(target).encode() + b"'\ntR.")
    with pytest.raises(WorkloadError, match="not JSON"):
        Result.load(tmp_path / "r.json")
    assert not target.exists()


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="No such file"):
        Result.load(tmp_path / "none.json")


def test_questions_about_what_is_not_there_name_what_is(example: Result) -> None:
    with pytest.raises(RequestError, match="no size 7 in this result; it has 100, 10000"):
        example.summary(CPU, 7)
    with pytest.raises(RequestError, match="no backend 'x' in this result; it has trees, "):
        example.summary("x", 100)
