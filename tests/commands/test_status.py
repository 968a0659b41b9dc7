"""`gpulab status` and `gpulab leases`: the contract of their JSON, and what people read."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from .conftest import Run, Start

HOLD = "print(flush=True); input()"


def hold(start: Start, *options: str) -> object:
    process = start("run", *options, "--", sys.executable, "-c", HOLD)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_the_json_follows_the_contract(gpulab: Run, start: Start) -> None:
    process = hold(start)
    report = json.loads(gpulab("status", "--json").stdout)
    assert report["schema"] == "gpulab.status/1"
    assert report["simulated"] is True
    assert (report["source"], report["lease_scope"]) == ("nvml", "account")
    assert report["nvml"]["state"] == "ok"
    assert report["time"].endswith("Z")
    assert report["devices"][0]["detailed_at"].endswith("Z")
    assert len(report["devices"]) == 8
    (lease,) = report["leases"]
    assert lease["pid"] == process.pid  # type: ignore[attr-defined]
    assert (lease["mode"], lease["state"], lease["container"]) == ("exclusive", "active", False)
    (held,) = [device for device in report["devices"] if device["leases"]]
    assert held["leases"] == [lease["id"]]
    assert held["uuid"] == lease["gpus"][0]
    assert set(held) == {
        "index", "uuid", "name", "kind", "parent_uuid", "state", "message", "sampled_at", "memory",
        "utilization",
        "temperature_celsius", "power_watts", "power_limit_watts", "energy_joules", "compute_mode", "drained",
        "visible", "processes", "unattributed_bytes", "leases", "clocks", "throttle_reasons", "pcie",
        "nvlink", "detailed_at",
    }  # fmt: skip
    assert held["memory"]["total_bytes"] > 70 * 2**30
    assert report["waiting"] == []


def test_a_process_below_the_holder_is_matched_to_its_lease(
    gpulab: Run, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = tmp_path / "machine.json"
    machine: dict[str, object] = {"devices": [{"profile": "h100", "count": 1}]}
    scenario.write_text(json.dumps(machine))
    monkeypatch.setenv("GPULAB_SIMULATE", str(scenario))
    code = "import subprocess as s; p = s.Popen(['sleep', '60']); print(p.pid, flush=True); input(); p.kill()"
    parent = start("run", "--", sys.executable, "-c", code)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    machine["processes"] = [{"gpu": 0, "pid": child, "memory": "2GiB", "bound": True}]
    scenario.write_text(json.dumps(machine))
    report = json.loads(gpulab("status", "--json").stdout)
    (process,) = report["devices"][0]["processes"]
    assert process["pid"] == child
    assert process["command"] == "sleep"
    assert process["lease"] == report["leases"][0]["id"]
    parent.communicate("\n")


def test_people_see_each_gpu_its_holder_and_that_it_is_simulated(gpulab: Run, start: Start) -> None:
    process = hold(start)
    for words in ((), ("status",)):
        text = gpulab(*words).stdout
        assert "simulated machine" in text
        assert "leases of this account only" in text
        assert text.count("free") == 7
        assert f"({process.pid})" in text  # type: ignore[attr-defined]
        assert max(len(line.rstrip()) for line in text.splitlines()) <= 80


def test_without_a_driver_the_status_is_an_answer(gpulab: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPULAB_SIMULATE")
    report = json.loads(gpulab("status", "--json").stdout)
    if report["devices"]:
        pytest.skip("this machine has a GPU")
    assert report["nvml"]["state"] in ("no_library", "no_driver")
    assert report["nvml"]["message"] in " ".join(gpulab("status").stdout.split())


def test_a_lost_gpu_is_named_and_the_others_are_told(
    gpulab: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = tmp_path / "machine.json"
    fault = {"call": "nvmlDeviceGetHandleByIndex*", "gpu": 1, "code": 15}
    scenario.write_text(json.dumps({"devices": [{"profile": "a100", "count": 3}], "faults": [fault]}))
    monkeypatch.setenv("GPULAB_SIMULATE", str(scenario))
    states = [device["state"] for device in json.loads(gpulab("status", "--json").stdout)["devices"]]
    assert states == ["ok", "lost", "ok"]
    assert "GPU 1" in gpulab("status").stdout


def test_a_lease_whose_command_ended_names_the_child_that_keeps_it(gpulab: Run, start: Start) -> None:
    # A shell passes the descriptor on to what it leaves running.
    process = start("run", "--", "sh", "-c", "sleep 60 >/dev/null 2>&1 </dev/null & echo $!")
    assert process.stdout is not None
    orphan = int(process.stdout.readline())
    process.wait()
    try:
        (lease,) = json.loads(gpulab("leases", "--json").stdout)["leases"]
        assert lease["pid"] == orphan
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_leases_are_listed_for_people_and_programs(gpulab: Run, start: Start) -> None:
    assert gpulab("leases").stdout.startswith("No GPU is leased.")
    process = hold(start, "--memory", "8GiB")
    report = json.loads(gpulab("leases", "--json").stdout)
    assert report["schema"] == "gpulab.leases/1"
    assert report["leases"][0]["memory_bytes"] == 8 * 2**30
    text = gpulab("leases").stdout
    assert "8.0 GiB" in text
    assert f"process {process.pid}" in text  # type: ignore[attr-defined]


def test_a_driver_that_hangs_at_its_start_is_an_answer_and_the_command_ends(
    gpulab: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = tmp_path / "hangs.json"
    fault = {"call": "nvmlInit*", "hang": True}
    scenario.write_text(json.dumps({"devices": [{"profile": "h100", "count": 8}], "faults": [fault]}))
    monkeypatch.setenv("GPULAB_SIMULATE", str(scenario))
    result = gpulab("status", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["nvml"]["state"] == "unresponsive"


def test_without_a_lease_directory_nothing_looks_free(
    gpulab: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "leases")
    monkeypatch.setenv("GPULAB_LEASE_DIR", str(tmp_path / "link"))
    result = gpulab("status")
    words = " ".join(result.stdout.split())
    assert result.returncode == 0
    assert "is a link; name the real directory in GPULAB_LEASE_DIR" in words
    assert sum(line.endswith("unknown") for line in map(str.rstrip, result.stdout.splitlines())) == 8
    assert " free" not in words
    report = json.loads(gpulab("status", "--json").stdout)
    assert (report["lease_scope"], report["leases"]) == (None, None)
    refused = gpulab("leases", "--json")
    assert (refused.returncode, refused.stdout) == (125, "")
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [("status", "--json"), ("leases", "--json")])
def test_a_configuration_that_cannot_be_read_leaves_stdout_empty(
    gpulab: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("GPULAB_CONFIG", "/no/such/file")
    result = gpulab(*words)
    assert (result.returncode, result.stdout) == (64, "")
    assert len(result.stderr.splitlines()) == 1


def test_watching_needs_a_terminal_and_is_not_for_programs(gpulab: Run) -> None:
    for words, sentence in (
        (("status", "--watch"), "use `gpulab status --json`"),
        (("status", "--watch", "--json"), "--watch does not go with --json"),
    ):
        result = gpulab(*words)
        assert (result.returncode, result.stdout) == (64, "")
        assert sentence in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_simulated_machine_that_does_not_exist_is_wrong_usage(
    gpulab: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "foo")
    result = gpulab("status", "--json")
    assert (result.returncode, result.stdout) == (64, "")
    assert "foo" in result.stderr
