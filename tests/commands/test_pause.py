"""`gpulab pause` and `resume`: NVML is let go of, nobody loses a place, and only root pauses for others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpulab import config
from gpulab.allocation.directory import find
from gpulab.allocation.leases import live_leases
from gpulab.allocation.session import Lease
from gpulab.allocation.tickets import waiting
from gpulab.hardware import nvml, pausing
from gpulab.jupyter.decision import Options, decide, resume

from . import administered


def gpulab(*words: str) -> subprocess.CompletedProcess[str]:
    return administered.run(None, *words)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "2xt4")


def status() -> dict[str, object]:
    return json.loads(gpulab("status", "--json").stdout)["nvml"]


def test_a_pause_is_told_with_its_remedy_and_ends() -> None:
    paused = gpulab("pause")
    assert paused.returncode == 0
    assert "paused for this account since" in paused.stdout
    assert status()["state"] == "paused"
    assert "`gpulab resume`" in str(status()["message"])
    assert gpulab("pause").returncode == 0  # a second time changes nothing
    assert gpulab("resume").stdout.startswith("Resumed")
    assert status()["state"] == "ok"
    assert gpulab("resume").stdout.startswith("Nothing was paused")


def test_a_process_that_had_nvml_open_lets_go_of_it_and_takes_it_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = tmp_path / "machine.json"
    scenario.write_text(json.dumps({"devices": [{"profile": "t4"}], "call_log": "calls.log"}))
    monkeypatch.setenv("GPULAB_SIMULATE", str(scenario))
    settings = config.load()
    log = tmp_path / "calls.log"

    def calls() -> list[str]:
        return [line.split()[0] for line in log.read_text().splitlines()]

    assert nvml.snapshot(settings=settings).devices
    assert gpulab("pause").returncode == 0
    found = nvml.snapshot(settings=settings)
    assert (found.driver.state, found.devices) == ("paused", ())
    assert calls()[-1] == "nvmlShutdown"
    before = len(calls())
    nvml.snapshot(settings=settings)
    assert len(calls()) == before  # not one call while it lasts
    gpulab("resume")
    assert nvml.snapshot(settings=settings).devices
    assert calls()[before].startswith("nvmlInit")
    nvml.shutdown()


def test_who_holds_a_gpu_is_named_by_the_pause_and_by_status_and_leases_in_it(
    until: Callable[..., None],
) -> None:
    settings = config.load()
    held = subprocess.Popen(administered.command(None, "run", "--", "sleep", "100"))
    try:
        until(lambda: live_leases(settings), "a lease")
        (lease,) = live_leases(settings)
        line = f"leased: {lease.gpus[0]} by {lease.user} (process {held.pid}), for "
        assert line in gpulab("pause").stdout
        assert line in " ".join(gpulab("status").stdout.split())
        shown = gpulab("leases").stdout
        assert "known by their UUIDs only" in shown
        assert "asks the driver" not in shown
    finally:
        held.kill()
        held.wait()
    assert "leased" not in gpulab("pause").stdout


def test_the_doctor_notes_a_pause_once_and_finds_no_fault_with_the_driver() -> None:
    gpulab("pause")
    lines = gpulab("doctor").stdout.splitlines()
    assert [line[:12] for line in lines if "resume" in line] == ["note  paused"]
    assert not any(line.startswith("FAIL  driver") for line in lines)


def test_who_asks_for_a_gpu_meanwhile_waits_and_gets_it_afterwards(until: Callable[..., None]) -> None:
    gpulab("pause")
    refused = gpulab("run", "--no-wait", "--", "true")
    assert refused.returncode == 75
    assert "paused" in refused.stderr
    settings = config.load()
    child = subprocess.Popen(
        administered.command(None, "run", "--", "printenv", "CUDA_VISIBLE_DEVICES"), stdout=subprocess.PIPE
    )
    until(lambda: waiting(find(settings), settings), "a place in the queue")
    assert not live_leases(settings)
    gpulab("resume")
    output, _ = child.communicate(timeout=30)
    assert child.returncode == 0
    assert output.startswith(b"GPU-")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be two accounts")
def test_roots_pause_holds_for_all_and_is_not_theirs_to_end(
    passable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = passable / "host-leases"
    host.mkdir()
    host.chmod(0o1777)
    monkeypatch.setenv("GPULAB_LEASE_DIR", str(host))

    def theirs(*words: str) -> subprocess.CompletedProcess[str]:
        return administered.run_as(12345, *words, home=passable / "theirs")

    forged = host / "paused"
    forged.touch()
    os.chown(forged, 12345, 12345)
    assert pausing.paused(config.load()) is None  # not root's, so nobody is paused by it
    assert "no plain file of" in gpulab("pause").stderr
    forged.unlink()
    assert "on this host" in gpulab("pause").stdout
    assert "on this host" in theirs("status").stdout
    assert theirs("resume").returncode == 125
    assert "sudo gpulab resume" in theirs("resume").stderr
    assert gpulab("resume").returncode == 0
    assert "on this host" not in theirs("status").stdout


def test_a_kernel_starts_meanwhile_says_why_it_has_no_gpu_and_keeps_its_place(
    until: Callable[..., None],
) -> None:
    gpulab("pause")
    decision = decide(Options(policy="name:T4"), config.inherited(), queue=True)
    assert decision.lease is None
    assert "paused for this account" in (decision.reason or "")
    assert decision.variables["CUDA_VISIBLE_DEVICES"] == ""
    ticket = decision.ticket
    assert ticket is not None
    number = ticket.number
    again = resume(ticket, config.inherited())  # a restart, still in the pause
    assert again is not None
    assert "paused for this account" in (again.reason or "")
    assert (again.ticket, ticket.number) == (ticket, number)
    gpulab("resume")
    found: list[Lease] = []

    def has_come() -> bool:
        after = resume(ticket, config.inherited())
        found.extend([after.lease] if after and after.lease else [])
        return bool(found)

    until(has_come, "its turn")
    assert found[0].held is not None
    found[0].held.give_up()


def test_who_waits_is_told_of_a_pause_and_of_its_end(until: Callable[..., None]) -> None:
    settings = config.load()
    held = subprocess.Popen(administered.command(None, "run", "--gpus", "2", "--", "sleep", "100"))
    until(lambda: live_leases(settings), "a lease on all")
    waits = subprocess.Popen(
        administered.command(None, "run", "--", "true"), stderr=subprocess.PIPE, text=True
    )
    try:
        assert waits.stderr is not None
        assert "Waiting for a GPU, at place 1 of 1" in waits.stderr.readline()
        gpulab("pause")
        assert "paused for this account since" in waits.stderr.readline()
        gpulab("resume")
        assert waits.stderr.readline() == "gpulab: The GPUs are asked again.\n"
    finally:
        held.kill()
        held.wait()
    assert waits.wait(30) == 0


def test_who_began_to_wait_in_a_pause_is_served_before_who_comes_after_it(
    monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "1xt4")
    settings = config.load()
    gpulab("pause")
    command = administered.command(None, "run", "--policy", "name:T4", "--", "true")
    first = subprocess.Popen(command)
    until(lambda: waiting(find(settings), settings), "a place in the queue")
    first.send_signal(signal.SIGSTOP)  # so that only its place can tell that it is first
    gpulab("resume")
    late = gpulab("run", "--no-wait", "--", "true")
    first.send_signal(signal.SIGCONT)
    assert late.returncode == 75
    assert first.wait(30) == 0


def test_who_began_to_wait_in_a_pause_for_one_gpu_soon_keeps_no_other_from_anybody(
    until: Callable[..., None],
) -> None:
    settings = config.load()
    uuids = [device.uuid for device in nvml.snapshot(settings=settings).devices]
    held = subprocess.Popen(
        administered.command(None, "run", "--policy", f"uuid:{uuids[0]}", "--", "sleep", "100")
    )
    until(lambda: live_leases(settings), "a lease on the first GPU")
    gpulab("pause")
    waits = subprocess.Popen(
        administered.command(None, "run", "--policy", f"uuid:{uuids[0]}", "--", "true"),
    )
    until(lambda: waiting(find(settings), settings), "a place in the queue")
    gpulab("resume")
    until(lambda: waiting(find(settings), settings)[0].within == (uuids[0],), "what it waits for")
    assert gpulab("run", "--no-wait", "--", "printenv", "CUDA_VISIBLE_DEVICES").stdout.strip() == uuids[1]
    held.terminate()
    held.wait()
    assert waits.wait(30) == 0
