"""A lease lives while its lock is held, whatever its text says and however its holder ends."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpulab import config
from gpulab.allocation import leases
from gpulab.allocation.directory import LeaseDirectory, find
from gpulab.errors import LeaseDirectoryError

GPU = "GPU-00000000-0000-0000-0000-000000000001"

TAKE = f"""
import os, signal, sys
from gpulab import config
from gpulab.allocation import directory, leases
found = directory.find(config.load())
with leases.guard(found):
    held = leases.take(found, gpus=({GPU!r},), mode="exclusive", memory_bytes=None, priority="normal")
print(held.id, flush=True)
"""


@pytest.fixture
def directory() -> LeaseDirectory:
    return find(config.load())


def take(directory: LeaseDirectory, **changes: object) -> leases.HeldLease:
    request = {"gpus": (GPU,), "mode": "exclusive", "memory_bytes": None, "priority": "normal", **changes}
    with leases.guard(directory):
        return leases.take(directory, **request)  # type: ignore[arg-type]


@pytest.fixture
def holder() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a process that takes a lease, runs `then`, and waits for its end."""
    started: list[subprocess.Popen[str]] = []

    def start(then: str = "") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", f"{TAKE}{then}\nsys.stdin.read()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().strip()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_lease_says_who_holds_what(directory: LeaseDirectory) -> None:
    held = take(directory, mode="shared", memory_bytes=2**33, priority="high")
    (record,) = leases.live(directory)
    assert record.id == held.id
    assert record.gpus == (GPU,)
    assert (record.mode, record.memory_bytes, record.priority) == ("shared", 2**33, "high")
    assert (record.uid, record.pid, record.container) == (os.getuid(), os.getpid(), False)


def test_a_lease_of_a_killed_process_is_gone_at_once(
    directory: LeaseDirectory, holder: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = holder("")
    assert [record.pid for record in leases.live(directory)] == [process.pid]
    process.kill()
    process.wait()
    assert leases.live(directory) == ()


def test_the_owners_next_call_sweeps_dead_files(
    directory: LeaseDirectory, holder: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = holder("held.annotate(kernel_id='k', notebook='n'); print(flush=True)")
    assert process.stdout is not None
    process.stdout.readline()
    assert len(directory.names("note-")) == 1
    process.kill()
    process.wait()
    alive = take(directory)
    with leases.guard(directory):
        leases.sweep(directory)
    assert directory.names("lease-") == [f"lease-{alive.id}"]
    assert directory.names("note-") == []


def test_a_forked_child_neither_keeps_nor_ends_the_lease(
    directory: LeaseDirectory, holder: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = holder(
        "if os.fork() == 0:\n"
        "    held.give_up(); held.close(); print(os.getpid(), flush=True); signal.pause()\n"
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        assert len(leases.live(directory)) == 1
        process.kill()
        process.wait()
        os.kill(child, 0)
        assert leases.live(directory) == ()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_lease_that_was_handed_on_ends_when_both_have_let_go(directory: LeaseDirectory) -> None:
    held = take(directory)
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[held.fd])
    held.close()
    assert len(leases.live(directory)) == 1
    other.communicate(b"\n")
    assert leases.live(directory) == ()


def test_giving_up_ends_it_for_all_who_share_the_descriptor(directory: LeaseDirectory) -> None:
    held = take(directory)
    shared = leases.HeldLease(directory, held.id, os.dup(held.fd))
    shared.give_up()
    shared.give_up()
    assert not held.is_held()
    assert leases.live(directory) == ()
    held.close()


def test_reading_the_file_of_a_lease_does_not_lose_it(directory: LeaseDirectory) -> None:
    held = take(directory)
    Path(held.path).read_bytes()
    leases.live(directory)
    assert len(leases.live(directory)) == 1


def test_what_a_lease_says_of_itself_can_change_while_it_is_held(directory: LeaseDirectory) -> None:
    held = take(directory)
    held.describe(pid=1)
    held.annotate(kernel_id="kernel", notebook="/home/me/work.ipynb")
    (record,) = leases.live(directory)
    assert (record.pid, record.kernel_id, record.notebook) == (1, "kernel", "/home/me/work.ipynb")
    note = Path(directory.path) / f"note-{held.id}"
    assert note.stat().st_mode & 0o777 == 0o600


HOSTILE = {
    "not JSON": b"{",
    "another shape": b"[]",
    "wrong types": json.dumps(
        {"gpus": [1], "mode": "exclusive", "memory_bytes": None, "priority": "normal", "pid": 1, "since": 0}
    ).encode(),
    "huge": b" " * 10_000_000,
    "empty": b"",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_content_that_is_no_lease_is_passed_over(directory: LeaseDirectory, content: bytes) -> None:
    path = Path(directory.path) / "lease-bad"
    path.write_bytes(content)
    with path.open("rb") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        held = take(directory)
        assert [record.id for record in leases.live(directory)] == [held.id]


def test_links_and_fifos_are_passed_over(directory: LeaseDirectory, tmp_path: Path) -> None:
    os.mkfifo(Path(directory.path) / "lease-fifo")
    (Path(directory.path) / "lease-link").symlink_to("/etc/passwd")
    held = take(directory)
    os.link(held.path, Path(directory.path) / "lease-twin")
    assert leases.live(directory) == ()  # a second name could be an impostor's
    os.unlink(Path(directory.path) / "lease-twin")
    assert [record.id for record in leases.live(directory)] == [held.id]


def test_the_owner_is_the_files_and_not_what_the_text_says(directory: LeaseDirectory) -> None:
    held = take(directory)
    held.describe(uid=0, user="root; rm", pid=os.getpid())
    (record,) = leases.live(directory)
    assert record.uid == os.stat(held.path).st_uid


def test_a_flood_of_one_owners_files_does_not_hide_another_lease(directory: LeaseDirectory) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs a second account")
    for number in range(2 * leases.MAX_FILES_PER_OWNER):
        path = Path(directory.path) / f"lease-{number:04}"
        path.touch()
        os.chown(path, 54321, 54321)
    held = take(directory)
    assert [record.id for record in leases.live(directory)] == [held.id]


def test_a_guard_that_is_never_let_go_is_named_with_its_process(directory: LeaseDirectory) -> None:
    code = (
        "from gpulab import config\nfrom gpulab.allocation import directory, leases\n"
        "with leases.guard(directory.find(config.load())):\n    print(flush=True)\n    input()\n"
    )
    keeper = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert keeper.stdout is not None
    keeper.stdout.readline()
    try:
        expected = rf"held by process {keeper.pid} for 0 s; end that process"
        with pytest.raises(LeaseDirectoryError, match=expected), leases.guard(directory, timeout=0.2):
            pass
    finally:
        keeper.communicate(b"\n")


def test_a_directory_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    from gpulab.errors import LeaseError

    with pytest.raises(LeaseError, match="could not be written"):
        leases.take(
            LeaseDirectory(str(tmp_path / "missing"), "account"),
            gpus=(GPU,),
            mode="exclusive",
            memory_bytes=None,
            priority="normal",
        )
