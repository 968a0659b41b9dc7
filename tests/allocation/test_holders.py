"""Which processes stand behind a lease."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulab.allocation.holders import Lineage, is_alive, keeper, lease_of
from gpulab.allocation.records import LeaseRecord, start_time
from gpulab.hardware.devices import Device, Process

ME = LeaseRecord("mine", ("GPU-1",), uid=os.getuid(), pid=os.getpid(), pid_started=start_time(os.getpid()))


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_later_process_of_the_same_number_is_not_the_holder() -> None:
    assert is_alive(ME)
    assert is_alive(ME._replace(pid_started=(ME.pid_started or 0) + 1)) is False
    assert is_alive(ME._replace(pid=None)) is None


def test_a_process_belongs_to_the_lease_of_an_ancestor(child: subprocess.Popen[bytes]) -> None:
    assert lease_of(Process(child.pid, "me"), [ME]) == "mine"
    assert lease_of(Process(child.pid, "me"), [ME._replace(pid_started=1)]) is None
    assert lease_of(Process(1, "root"), [ME]) is None


def test_a_process_that_we_cannot_see_is_not_taken_for_ours_of_the_same_number(
    child: subprocess.Popen[bytes],
) -> None:
    assert lease_of(Process(child.pid), [ME]) is None


def test_a_dead_holders_lease_names_who_keeps_its_file_open(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    path.touch()
    dead = ME._replace(pid_started=1)
    assert keeper(dead, str(path)) is None
    with path.open() as file:
        heir = subprocess.Popen(["sleep", "60"], stdin=file)
    try:
        assert keeper(dead, str(path)) == heir.pid
        assert keeper(dead._replace(uid=54321), str(path)) is None
        assert keeper(ME, str(path)) == os.getpid()
    finally:
        heir.kill()
        heir.wait()


def test_a_stranger_is_who_certainly_belongs_to_no_lease(child: subprocess.Popen[bytes]) -> None:
    own, other, unseen = Process(child.pid, "me"), Process(1, "root"), Process(9**7)
    device = Device(0, "GPU-1", processes=(own, other, unseen))
    assert Lineage().strangers(device, [ME]) == (other,)
    assert Lineage(sees_all=True).strangers(device, [ME]) == (other, unseen)
    assert Lineage().strangers(device, []) == (own, other, unseen)
    assert Lineage().strangers(device, [ME._replace(container=True, pid=None)]) == ()


def test_where_a_holder_is_out_of_sight_its_accounts_processes_may_be_its_own() -> None:
    hers, his = Process(9**7, "ann", "python"), Process(9**7 + 1, "bob", "python")
    device = Device(0, "GPU-1", processes=(hers, his, Process(9**7 + 2)))
    gone = ME._replace(pid=9**7, user="ann")
    assert Lineage(sees_all=True).strangers(device, [gone]) == (his,)
