"""A result that is plainly made up: round figures, an invented machine, labelled as an example."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from gpulab.compare.result import Result

CPU, GPU = "trees", "brute"


def samples(
    seconds: float, *, gpu: bool, count: int = 12, stalled: float | None = 0.0
) -> list[dict[str, Any]]:
    """Samples around `seconds` of which the median is exactly that; a tenth each way for the transfers."""
    found = []
    for number in range(count):
        total = seconds * (1 + 0.01 * (number - (count - 1) / 2))
        part = total / 10 if gpu else None
        found.append(
            {
                "end_to_end_seconds": total,
                "compute_seconds": total * 0.8 if gpu else total,
                "host_to_device_seconds": part,
                "device_to_host_seconds": part,
                "stalled_share": stalled,
            }
        )
    return found


def size_run(size: int, cpu: float, gpu: float) -> dict[str, Any]:
    return {
        "size": size,
        "state": "measured",
        "parameters": {"eps": 0.5},
        "facts": {"neighbours_per_point": 16.0},
        "memory_bytes": 1000,
        "best_cpu": CPU,
        "race": {CPU: [cpu, cpu], "slow-trees": [cpu * 3, cpu * 3]},
        "measurements": [
            {"backend": CPU, "samples": samples(cpu, gpu=False)},
            {"backend": GPU, "samples": samples(gpu, gpu=True)},
        ],
        "parity": [{"state": "same", "message": "as it should be", "reference": CPU, "candidate": GPU}],
        "placement": {GPU: ""},
        "strangers": {GPU: {"before": 0, "after": 0}},
    }


def backend(name: str, side: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "title": f"Example {name}",
        "side": side,
        "library": "example",
        "state": "ready",
        **more,
    }


RECORD: dict[str, Any] = {
    "schema": "gpulab.compare/2",
    "workload": "dbscan",
    "title": "Example workload",
    "teaches": "Nothing: the figures are made up.",
    "unit": "points",
    "origin": "example",
    "date": "2000-01-01T00:00:00Z",
    "gpulab": "0",
    "seed": 0,
    "budget_seconds": 1.0,
    "interrupted": False,
    "machine": {
        "cpu": "Example CPU",
        "usable_cores": 4,
        "core_quota": None,
        "memory_bytes": None,
        "platform": "Example",
        "python": "3",
        "gpu": "Example GPU",
        "pressure": "/proc/pressure/cpu",
    },
    "backends": [
        backend(CPU, "cpu", threads=4, import_seconds=1.0, first_call_seconds=0.5, warm_call_seconds=0.5),
        backend("slow-trees", "cpu", threads=1),
        backend(GPU, "gpu", import_seconds=3.0, first_call_seconds=9.0, warm_call_seconds=1.0),
    ],
    "runs": [size_run(100, 1.0, 4.0), size_run(10_000, 8.0, 2.0)],
}


@pytest.fixture
def record() -> dict[str, Any]:
    return copy.deepcopy(RECORD)


@pytest.fixture
def example(record: dict[str, Any]) -> Result:
    return Result.from_dict(record)


@pytest.fixture
def changed(record: dict[str, Any]) -> Callable[[Callable[[dict[str, Any]], Any]], Result]:
    """The example with one thing changed in its larger size."""

    def change(edit: Callable[[dict[str, Any]], Any]) -> Result:
        edit(record["runs"][1])
        return Result.from_dict(record)

    return change


@pytest.fixture
def make_samples() -> Callable[..., list[dict[str, Any]]]:
    return samples
