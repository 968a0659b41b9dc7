"""The GPU of a comparison: leased for its workers where this process holds none, and given back."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import psutil
import pytest

import gpulab
from gpulab.allocation.leases import live_leases
from gpulab.compare.backend import Backend
from gpulab.compare.conditions.provenance import describe_machine
from gpulab.compare.results.records import Machine
from gpulab.compare.workers.client import WorkerProcess
from gpulab.compare.workers.loan import borrow
from gpulab.config import load


class OnGpu(Backend):
    """A GPU backend whose library is installed everywhere."""

    name, side, modules = "example", "gpu", ("json",)


class OnCpu(Backend):
    name, modules = "example", ("json",)


class NotInstalled(OnGpu):
    modules, remedy = ("no_such_library",), "install it"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Two simulated GPUs, described as a machine whose GPUs could compute: leases are real all the same."""
    monkeypatch.setenv("GPULAB_SIMULATE", "2xh100")
    return replace(describe_machine(), gpu_reason="", simulated=False)


def held() -> list[tuple[str, ...]]:
    return [lease.gpus for lease in live_leases(load())]


def test_only_the_workers_environment_has_the_lease_and_it_ends_with_the_comparison(machine: Machine) -> None:
    before = dict(os.environ)
    with borrow(machine, [OnGpu()]) as loan:
        assert loan.reason == ""
        assert loan.environment is not None
        assert held() == [(loan.environment["CUDA_VISIBLE_DEVICES"],)]
        assert dict(os.environ) == before
        assert gpulab.current() is None
    assert held() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_or_an_interrupt_gives_it_back(machine: Machine, error: type[BaseException]) -> None:
    def fail_with_a_lease() -> None:
        with borrow(machine, [OnGpu()]):
            assert len(held()) == 1
            raise error

    with pytest.raises(error):
        fail_with_a_lease()
    assert held() == []


def test_a_lease_that_this_process_holds_is_used_and_kept(machine: Machine) -> None:
    with gpulab.acquire() as lease:
        with borrow(machine, [OnGpu()]) as loan:
            assert loan == (None, "")
            assert held() == [lease.gpus]
        assert held() == [lease.gpus]


def test_when_all_are_taken_the_reason_says_so_and_nothing_is_raised(machine: Machine) -> None:
    with borrow(machine, [OnGpu()]), borrow(machine, [OnGpu()]), borrow(machine, [OnGpu()]) as third:
        assert third.environment is None
        assert "none of 2 is free" in third.reason
        assert not third.reason.endswith(".")


def test_the_users_own_mask_bounds_the_choice(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with borrow(machine, [OnGpu()]) as loan:
        assert loan.environment is None
        assert loan.reason


@pytest.mark.parametrize("backends", [[OnCpu()], [OnCpu(), NotInstalled()], []])
def test_nothing_is_leased_that_no_backend_could_use(machine: Machine, backends: list[Backend]) -> None:
    with borrow(machine, backends) as loan:
        assert loan == (None, "")
        assert held() == []


def test_simulated_gpus_are_not_leased_for_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "2xh100")
    with borrow(describe_machine(), [OnGpu()]) as loan:
        assert loan == (None, "")
        assert held() == []


def test_a_worker_gets_the_environment_that_was_meant_for_it(machine: Machine) -> None:
    with borrow(machine, [OnGpu()]) as loan:
        worker = WorkerProcess("dbscan", "sklearn-auto", time.monotonic() + 60, loan.environment)
        try:
            theirs = psutil.Process(worker.pid).environ()
        finally:
            worker.close()
        assert loan.environment is not None
        assert theirs["CUDA_VISIBLE_DEVICES"] == loan.environment["CUDA_VISIBLE_DEVICES"] == worker.mask
        assert theirs["GPULAB_LEASE"] == loan.environment["GPULAB_LEASE"]
