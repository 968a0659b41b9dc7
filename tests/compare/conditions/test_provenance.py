"""The machine of a result, and the room that a process has."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from gpulab.compare.conditions.provenance import describe_machine, memory_room


def test_the_machine_is_described_as_the_system_describes_it() -> None:
    machine = describe_machine()
    assert machine.usable_cores == len(os.sched_getaffinity(0))
    assert machine.memory_bytes is not None
    assert machine.memory_bytes > 2**28
    assert machine.cpu


def test_a_machine_with_simulated_gpus_says_that_they_cannot_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "1xh100")
    machine = describe_machine()
    assert machine.simulated
    assert "simulated" in machine.gpu_reason
    assert machine.gpu is not None


def test_a_driver_that_reports_an_error_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    machine = describe_machine()
    if machine.gpu is None:
        assert machine.gpu_reason
        assert not machine.gpu_reason.endswith(".")


def test_a_limit_of_the_process_bounds_its_room() -> None:
    limit = 2**30
    answer = subprocess.run(
        [
            sys.executable,
            "-c",
            "from gpulab.compare.conditions.provenance import memory_room; print(memory_room())",
        ],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(answer.stdout) <= limit


def test_the_room_is_within_the_machines_memory() -> None:
    room, total = memory_room(), describe_machine().memory_bytes
    assert room is not None
    assert total is not None
    assert 0 < room <= total
