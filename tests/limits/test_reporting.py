"""The report where nothing is installed, and the driver's figure for this process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpulab import config
from gpulab.limits import dbscan_batch_mbytes, excess, pool_bytes, process_bytes
from gpulab.limits.state import Cap, ask, asked

GIB = 2**30


@pytest.fixture
def using(own_machine: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """A simulated GPU on which this very process holds so much memory."""

    def make(memory: str | None) -> None:
        mine = {"gpu": 0, "pid": os.getpid(), "memory": memory}
        file = own_machine / "machine.json"
        file.write_text(json.dumps({"devices": [{"profile": "h100"}], "processes": [mine]}))
        monkeypatch.setenv("GPULAB_SIMULATE", str(file))

    return make


def test_a_process_over_its_share_is_told_so_in_one_sentence(
    using: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    using("9GiB")
    monkeypatch.setenv("GPULAB_MEMORY_LIMIT", str(8 * GIB))
    assert process_bytes() == 9 * GIB
    assert excess(config.load()) == (
        "This kernel uses 9.0 GiB of GPU memory, more than its share of 8.0 GiB; "
        "free what you no longer need (`%gpu limits` shows what is capped), or restart the kernel."
    )


def test_a_process_within_its_share_or_without_one_is_left_alone(
    using: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    using("7GiB")
    assert excess(config.load()) is None
    monkeypatch.setenv("GPULAB_MEMORY_LIMIT", str(8 * GIB))
    assert excess(config.load()) is None


def test_what_the_driver_does_not_say_is_unknown_and_no_reason_to_complain(
    using: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    using(None)
    monkeypatch.setenv("GPULAB_MEMORY_LIMIT", "1")
    assert process_bytes() is None
    assert excess(config.load()) is None


def test_without_a_driver_the_figure_is_unknown(answer_of: Callable[[str], dict[str, Any]]) -> None:
    assert answer_of("answer['used'] = limits.process_bytes()")["used"] is None


def test_frameworks_that_are_not_installed_are_named_and_nothing_is_claimed_of_them(
    answer_of: Callable[[str], dict[str, Any]],
) -> None:
    answer = answer_of(
        """
import importlib.util
gpulab.limit_memory("8GiB")
answer["states"] = [s._asdict() for s in limits.report()]
answer["found"] = [s.name for s in limits.report() if importlib.util.find_spec(s.name)]
"""
    )
    assert [entry["name"] for entry in answer["states"]] == [
        "torch", "tensorflow", "jax", "cupy", "rmm", "numba", "onnxruntime", "xgboost",
    ]  # fmt: skip
    for entry in answer["states"]:
        there = "not capped" if entry["asked_bytes"] is None else "when imported"
        assert entry["state"] == (there if entry["name"] in answer["found"] else "not installed")
        assert entry["in_force_bytes"] is None


def test_cumls_dbscan_plans_with_half_of_the_pool_and_by_itself_without_a_cap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = asked()  # of a lease that this process had in an earlier test
    try:
        ask(None)
        assert dbscan_batch_mbytes() is None
        monkeypatch.setenv("GPULAB_MEMORY_LIMIT", str(8 * GIB))
        assert dbscan_batch_mbytes() == pool_bytes(8 * GIB) // 2 // 10**6
        ask(Cap(4 * GIB, by_user=True))
        assert dbscan_batch_mbytes() == pool_bytes(4 * GIB) // 2 // 10**6, "the newest wish counts"
    finally:
        ask(before)
