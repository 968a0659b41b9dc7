"""Who is on a device: leases, colleagues without one, what killed kernels left, and who is out of sight."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulab.allocation.policy import Candidate, Request, choose, rank
from gpulab.allocation.records import LeaseRecord, start_time
from gpulab.config import Settings
from gpulab.errors import NoFreeGpuError, NoGpuError
from gpulab.hardware import nvml
from gpulab.hardware.devices import Snapshot
from gpulab.hardware.owners import owner_of

GIB = 2**30
ME = owner_of(os.getpid())

Machine = Callable[..., Snapshot]
Child = Callable[..., int]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """The snapshot, for a choice, of a simulated machine; one H100 unless told otherwise."""

    def make(**scenario: Any) -> Snapshot:
        path = tmp_path / "machine.json"
        path.write_text(json.dumps({"devices": [{"profile": "h100"}], **scenario}))
        monkeypatch.setenv("GPULAB_SIMULATE", str(path))
        return nvml.snapshot(detail="choice")

    yield make
    nvml.shutdown()


@pytest.fixture
def child() -> Iterator[Child]:
    """Starts a process that waits, with these variables more in its environment."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**variables: str) -> int:
        started.append(subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], **variables}))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def lease(snapshot: Snapshot, pid: int | None, share: int | None = None, **changes: Any) -> LeaseRecord:
    known: dict[str, Any] = {
        "mode": "exclusive" if share is None else "shared",
        "memory_bytes": share and share * GIB,
        "uid": os.getuid(),
        "user": ME,
        "pid": pid,
        "pid_started": None if pid is None else start_time(pid),
    }
    return LeaseRecord("0badcafe", (snapshot.devices[0].uuid or "",), **{**known, **changes})


def only(snapshot: Snapshot, request: Request, *leases: LeaseRecord, **rules: Any) -> Candidate:
    return rank(snapshot, leases, request, Settings(**rules))[0]


def share(size: float) -> Request:
    return Request(memory_bytes=int(size * GIB))


def test_what_a_killed_kernel_left_behind_is_named_with_its_lease(machine: Machine, child: Child) -> None:
    pid = child(GPULAB_LEASE="deadbeef")
    found = only(machine(processes=[{"gpu": 0, "pid": pid, "memory": "9GiB"}]), Request())
    assert found.verdict == "taken"
    assert found.reason == (
        f"in use by sleep (process {pid} of {ME}), left behind when the holder of lease deadbeef ended; "
        "end it with kill"
    )


@pytest.mark.parametrize("odd", ["", "x" * 5000, "<b>evil", "-" * 8])
def test_what_is_no_lease_in_an_environment_is_no_lease(machine: Machine, child: Child, odd: str) -> None:
    pid = child(GPULAB_LEASE=odd)
    found = only(machine(processes=[{"gpu": 0, "pid": pid}]), Request())
    assert found.reason == f"in use without a lease by sleep (process {pid} of {ME})"


def test_a_child_that_has_left_its_parent_still_belongs_to_the_lease(machine: Machine, child: Child) -> None:
    holder, stray = child(), child(GPULAB_LEASE="0badcafe")
    used = machine(processes=[{"gpu": 0, "pid": stray, "memory": "20GiB"}])
    held = lease(used, holder, 30)
    assert only(used, share(48), held).fits  # 30 of the lease count, and not 20 more
    assert not only(used, share(48), held._replace(uid=54321, user="bob")).fits  # anybody can write it


def test_the_memory_of_a_leases_own_children_counts_once_and_a_strangers_on_top(
    machine: Machine, child: Child
) -> None:
    ours, theirs = child(), child()
    processes = [{"gpu": 0, "pid": pid, "memory": "20GiB"} for pid in (ours, theirs)]
    used = machine(processes=processes)
    held = lease(used, ours, 30)
    assert only(used, share(28), held).fits
    assert not only(used, share(30), held).fits


def test_a_containers_processes_that_cannot_be_matched_do_not_count_twice(
    machine: Machine, child: Child
) -> None:
    used = machine(processes=[{"gpu": 0, "pid": child(), "memory": "30GiB"}])
    held = lease(used, None, 30, container=True)
    assert only(used, share(48), held).fits
    assert only(used, Request(), held).reason.startswith(f"leased by {held.who} since")


def test_an_unseen_process_beside_a_lease_that_we_see_is_a_stranger(machine: Machine, child: Child) -> None:
    used = machine(processes=[{"gpu": 0, "pid": 2**22 - 1, "memory": "30GiB"}])
    assert not only(used, share(30), lease(used, child(), 30)).fits
    found = only(used, Request())
    assert "process 4194303 of another namespace" in found.reason


def test_a_desktop_is_no_colleague_and_its_memory_is_not_free_to_share(machine: Machine) -> None:
    desktop = machine(processes=[{"gpu": 0, "pid": 1, "memory": "20GiB", "type": "graphics"}])
    assert only(desktop, Request()).fits
    assert only(desktop, share(58)).fits
    assert only(desktop, share(60)).reason == "58.6 GiB of it is left to share"


def test_memory_that_the_driver_accounts_to_nobody_is_somebodys(machine: Machine) -> None:
    used = machine(devices=[{"profile": "h100", "memory_used": "30GiB"}])
    assert "by processes that the driver does not list" in only(used, Request()).reason
    assert only(used, share(48)).fits
    assert not only(used, share(50)).fits


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("nvmlDeviceGetComputeRunningProcesses*", 3),
        ("nvmlDeviceGetComputeRunningProcesses*", 999),
        ("nvmlDeviceGetUtilizationRates", 3),
        ("nvmlDeviceGetMemoryInfo*", 4),
        ("nvmlDeviceGetMemoryInfo*", 999),
    ],
)
def test_a_gpu_that_hides_its_use_is_taken_last_and_never_shared_blindly(
    machine: Machine, call: str, code: int
) -> None:
    devices = [{"profile": "h100"}, {"profile": "h100", "utilization": 90}]
    seen = machine(devices=devices, faults=[{"call": call, "gpu": 0, "code": code}])
    candidates = rank(seen, (), Request(), Settings())
    assert [candidate.device.index for candidate in candidates] == [1, 0]
    if "Memory" in call:
        assert not rank(seen, (), share(1), Settings())[1].usable


def test_an_exclusive_process_gpu_takes_one_lease_of_either_kind(machine: Machine, child: Child) -> None:
    mode = [{"profile": "h100", "compute_mode": "exclusive_process"}]
    empty = machine(devices=mode)
    assert only(empty, share(8)).fits
    assert only(empty, Request()).fits
    second = only(empty, share(8), lease(empty, child(), 8))
    assert second.verdict == "taken"
    assert second.reason.endswith(", and its compute mode admits one process")
    colleague = machine(devices=mode, processes=[{"gpu": 0, "pid": child(), "memory": "1GiB"}])
    assert "in use without a lease by sleep" in only(colleague, share(8)).reason


def test_the_administrator_decides_which_devices_are_handed_out(machine: Machine) -> None:
    two = machine(devices=[{"profile": "h100"}] * 2)
    first, second = (device.uuid or "" for device in two.devices)
    ranked = rank(two, (), Request(), Settings(devices=(second[:12].upper(),)))
    assert [(c.device.uuid, c.verdict) for c in ranked] == [(second, "free"), (first, "never")]
    assert ranked[1].reason == "not among the devices that the administrator lets gpulab hand out"
    assert not any(c.usable for c in rank(two, (), Request(), Settings(devices=())))


def test_a_list_of_the_real_machines_devices_does_not_close_a_simulated_one(machine: Machine) -> None:
    two = machine(devices=[{"profile": "h100"}] * 2)
    real = Settings(devices=("GPU-ffffffff", "MIG-eeeeeeee"))
    assert all(c.fits for c in rank(two, (), Request(), real))
    assert not any(c.usable for c in rank(two._replace(simulated=False), (), Request(), real))


def test_a_colleagues_login_is_told_as_the_administrator_says(
    machine: Machine, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = machine(processes=[{"gpu": 0, "pid": child(), "memory": "1GiB"}])
    gpu = taken.devices[0]
    strangers = tuple(process._replace(user="carol") for process in gpu.processes or ())
    theirs = taken._replace(devices=(gpu._replace(processes=strangers),))
    assert "of carol)" in only(theirs, Request()).reason
    monkeypatch.setattr(os, "getuid", lambda: 12345)  # root is told all
    assert "of another account)" in only(theirs, Request(), names="none").reason


def test_a_gpu_larger_than_a_lease_may_be_is_shared_and_not_given_whole(machine: Machine) -> None:
    both = machine(devices=[{"profile": "h100"}, {"profile": "l4"}])
    rules = Settings(max_memory_per_lease=24 * GIB)
    small, large = rank(both, (), Request(), rules)
    assert (small.device.index, small.fits) == (1, True)
    assert "the whole of it is 79.6 GiB, and the administrator bounds" in large.reason
    assert all(c.usable for c in rank(both, (), share(20), rules))
    with pytest.raises(NoGpuError, match="ask for a share of it"):
        choose(rank(machine(), (), Request(), rules), Request())


def test_a_gpu_whose_size_is_unknown_is_not_given_whole_where_leases_are_bounded(machine: Machine) -> None:
    hidden = machine(faults=[{"call": "nvmlDeviceGetMemoryInfo*", "code": 999}])
    assert only(hidden, Request()).usable
    assert "its size is unknown" in only(hidden, Request(), max_memory_per_lease=GIB).reason


def test_a_user_at_the_quota_is_told_what_is_held(machine: Machine, child: Child) -> None:
    two = machine(devices=[{"profile": "h100"}] * 2)
    held = lease(two, child(), 8)
    ranked = rank(two, (held,), share(8), Settings(max_gpus_per_user=1))
    assert {candidate.verdict for candidate in ranked} == {"quota"}
    uuid = (two.devices[0].uuid or "")[:12]
    with pytest.raises(
        NoFreeGpuError,
        match=rf"but you hold 1 GPU \(lease 0badcafe on {uuid}\) and the administrator allows each user 1; "
        "give one back, or wait",
    ):
        choose(ranked, share(8))
    assert only(two, share(8), held._replace(uid=54321), max_gpus_per_user=1).fits


def test_slices_are_devices_like_others_and_their_gpu_is_not_offered(machine: Machine, child: Child) -> None:
    slices = [{"profile": "1g.10gb"}, {"profile": "3g.40gb"}]
    cut = machine(devices=[{"profile": "h100", "mig": slices}])
    parent, small, large = cut.devices
    ranked = rank(cut, (), share(20), Settings())
    assert (ranked[0].device.uuid, ranked[0].verdict) == (large.uuid, "free")
    assert {c.device.uuid for c in ranked if not c.usable} == {parent.uuid, small.uuid}
    held = lease(cut, child())._replace(gpus=(large.uuid or "",))
    assert [c.device.uuid for c in rank(cut, (held,), Request(), Settings()) if c.fits] == [small.uuid]
    with pytest.raises(NoGpuError, match=r"GPUs 0\.0, 0\.1: a MIG slice, of which CUDA uses one per process"):
        choose(rank(cut, (), Request(gpus=2), Settings()), Request(gpus=2))


def test_a_lost_gpu_and_a_slow_one_leave_the_others_to_choose_from(machine: Machine) -> None:
    faults = [
        {"call": "nvmlDeviceGet*", "gpu": 0, "code": 15},
        {"call": "nvmlDeviceGet*", "gpu": 1, "code": 999},
    ]
    seen = machine(devices=[{"profile": "h100"}] * 3, faults=faults)
    ranked = rank(seen, (), Request(), Settings())
    assert [c.device.index for c in ranked if c.usable] == [2]
    with pytest.raises(NoGpuError, match=r"has 1 to hand out \(GPU 0: GPU 0 is lost"):
        choose(rank(seen, (), Request(gpus=2), Settings()), Request(gpus=2))
