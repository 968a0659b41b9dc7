"""Containers that share the lease directory: one GPU each, and nobody of another namespace is called dead."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from . import administered
from .administered import first_line

Contain = Callable[..., "subprocess.Popen[str]"]


def _can_unshare() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    tried = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "true"]
    return subprocess.run(tried, check=False, capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not _can_unshare(), reason="needs root and unshare(1) with new namespaces")

HOLD = "echo $GPULAB_LEASE $CUDA_VISIBLE_DEVICES $$; exec sleep 60"
IN_PLACE = 'mkdir -p "$0" && mount --bind "$1" "$0" && shift && exec "$@"'


@pytest.fixture
def contained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Contain]:
    """Runs `gpulab WORDS` with processes and mounts of its own, the lease directory mounted elsewhere."""
    monkeypatch.setenv("GPULAB_SIMULATE", "2xh100")
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        inside = tmp_path / f"inside-{len(started)}"
        command = [
            "unshare",
            "--pid",
            "--mount",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            IN_PLACE,
        ]
        process = subprocess.Popen(
            [*command, str(inside), str(tmp_path / "leases"), sys.executable, "-m", "gpulab", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "GPULAB_LEASE_DIR": str(inside)},
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def entries() -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(administered.run(None, "leases", "--json").stdout)["leases"]
    return found


def test_two_containers_get_a_gpu_each_and_none_is_left(contained: Contain) -> None:
    one, two = (first_line(contained("run", "--", "sh", "-c", HOLD)).split() for _ in range(2))
    assert one[1] != two[1]
    shown = entries()
    assert {entry["id"] for entry in shown} == {one[0], two[0]}
    assert [(entry["pid"], entry["container"]) for entry in shown] == [(None, True)] * 2
    assert administered.run(None, "leases").stdout.count("in a container") == 2
    assert administered.run(None, "run", "--no-wait", "--", "true").returncode == 75
    third = contained("run", "--no-wait", "--", "true")
    third.communicate(timeout=30)
    assert third.returncode == 75


def test_sweeping_removes_no_lease_of_another_namespace(contained: Contain) -> None:
    lease, *_ = first_line(contained("run", "--", "sh", "-c", HOLD)).split()
    assert administered.run(None, "run", "--no-wait", "--", "true").returncode == 0  # sweeps first
    assert [entry["id"] for entry in entries()] == [lease]


def test_root_outside_finds_the_process_by_its_open_lease_and_ends_it(contained: Contain) -> None:
    holder = contained("run", "--", "sh", "-c", HOLD)
    lease, _, inner = first_line(holder).split()
    done = administered.run(None, "stop", "--grace", "0.5", lease)
    assert (done.returncode, done.stderr) == (0, "")
    assert "(sleep) is asked to end (SIGTERM)" in done.stdout  # which a container's first process ignores
    assert "(sleep) did not end and is killed (SIGKILL)" in done.stdout
    assert f"process {inner} " not in done.stdout  # its number is another one out here
    assert holder.wait(10) != 0
    assert entries() == []


def test_from_one_container_anothers_is_only_told(contained: Contain) -> None:
    holder = contained("run", "--", "sh", "-c", HOLD)
    lease, *_ = first_line(holder).split()
    other = contained("stop", "--grace", "0.2", lease)
    out, _ = other.communicate(timeout=60)
    assert other.returncode == 1
    assert "its processes live in a container; run this in there, or as root on the host" in out
    assert holder.poll() is None


def test_the_doctor_tells_a_mounted_directory_from_the_containers_own(
    contained: Contain, tmp_path: Path
) -> None:
    (tmp_path / "leases").chmod(0o1777)  # as a host's is
    mounted = json.loads(contained("doctor", "--json").communicate(timeout=60)[0])
    own = tmp_path / "own"
    own.mkdir()
    own.chmod(0o1777)
    (own / "guard").touch(mode=0o444)
    command = [
        "unshare",
        "--pid",
        "--mount",
        "--fork",
        "--mount-proc",
        sys.executable,
        "-m",
        "gpulab",
        "doctor",
    ]
    environment = {**os.environ, "GPULAB_LEASE_DIR": str(own)}
    inside = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, check=False, env=environment
    )
    assert scope(mounted)[0] == "ok"
    assert "mounted from outside: all who mount it share these leases" in scope(mounted)[1]
    assert scope(json.loads(inside.stdout))[0] == "note"
    assert "start it with --volume /run/gpulab:" in scope(json.loads(inside.stdout))[1]


def scope(report: dict[str, Any]) -> tuple[str, str]:
    (found,) = [entry for entry in report["findings"] if entry["subject"] == "lease scope"]
    return found["state"], found["message"]
