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
from gpulab.errors import LeaseDirectoryError, LeaseError

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


HUGE = b" " * 10_000_000


@pytest.mark.parametrize("content", [b"", b"[" * 4000, HUGE], ids=["empty", "deep", "huge"])
def test_content_that_is_no_lease_is_passed_over(directory: LeaseDirectory, content: bytes) -> None:
    path = Path(directory.path) / "lease-0badbad0"
    path.write_bytes(content)
    with path.open("rb") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        held = take(directory)
        assert [record.id for record in leases.live(directory)] == [held.id]
        assert leases.passed_over(directory) == 1


def test_a_name_that_is_no_leases_never_reaches_anybody(directory: LeaseDirectory) -> None:
    path = Path(directory.path) / "lease-\x1b[31mroot"
    path.write_bytes(b"{}")
    with path.open("rb") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        assert leases.live(directory) == ()


def test_nobody_else_can_open_a_claim_before_it_is_locked(
    directory: LeaseDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever could would take the lock first, and each new lease would fail."""
    before: list[int] = []

    def flock(fd: int, operation: int, lock: Callable[[int, int], None] = fcntl.flock) -> None:
        if operation & fcntl.LOCK_EX and "/.new-" in os.readlink(f"/proc/self/fd/{fd}"):
            before.append(os.fstat(fd).st_mode & 0o777)
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    held = take(directory)
    assert before == [0o600]
    assert os.stat(held.path).st_mode & 0o777 == 0o644
    held.give_up()


def test_links_and_fifos_are_passed_over(directory: LeaseDirectory, tmp_path: Path) -> None:
    os.mkfifo(Path(directory.path) / "lease-fifo")
    (Path(directory.path) / "lease-link").symlink_to("/etc/passwd")
    held = take(directory)
    assert [record.id for record in leases.live(directory)] == [held.id]


def test_a_second_name_neither_hides_a_lease_nor_makes_another(directory: LeaseDirectory) -> None:
    held = take(directory)
    for number in range(20):  # whichever of them a directory lists first
        os.link(held.path, Path(directory.path) / f"lease-{number:08}")
    assert [record.id for record in leases.live(directory)] == [held.id]
    held.give_up()
    assert not held.is_held()
    assert leases.live(directory) == ()


def test_the_owner_is_the_files_and_not_what_the_text_says(directory: LeaseDirectory) -> None:
    held = take(directory)
    text = json.loads(Path(held.path).read_text())
    Path(held.path).write_text(json.dumps({**text, "uid": 54321, "user": "root; rm"}))
    (record,) = leases.live(directory)
    assert record.uid == os.stat(held.path).st_uid
    assert record.user != "root; rm"


def test_a_flood_of_one_owners_files_does_not_hide_another_lease(directory: LeaseDirectory) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs a second account")
    for number in range(2 * leases.MAX_FILES_PER_OWNER):
        path = Path(directory.path) / f"lease-{number:08}"
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
    with pytest.raises(LeaseError, match="could not be written"):
        leases.take(
            LeaseDirectory(str(tmp_path / "missing"), "account"),
            gpus=(GPU,),
            mode="exclusive",
            memory_bytes=None,
            priority="normal",
        )


def test_a_lease_on_many_gpus_is_still_one_after_its_holder_changed(directory: LeaseDirectory) -> None:
    gpus = tuple(f"GPU-00000000-0000-0000-0000-{number:012}" for number in range(40))
    held = take(directory, gpus=gpus)
    held.describe(pid=7)
    (record,) = leases.live(directory)
    assert (record.gpus, record.pid) == (gpus, 7)


def test_more_gpus_than_a_lease_can_name_are_refused(directory: LeaseDirectory) -> None:
    with pytest.raises(LeaseError, match="too many GPUs for one lease; ask for fewer"):
        take(directory, gpus=(GPU,) * 65)


def test_a_note_that_somebody_else_has_prepared_is_not_written(directory: LeaseDirectory) -> None:
    held = take(directory)
    trap = Path(directory.path) / f"note-{held.id}"
    trap.touch()
    trap.chmod(0o666)
    with pytest.raises(PermissionError):
        held.annotate(kernel_id="k", notebook="/home/me/secret.ipynb")
    assert trap.read_text() == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second account")
def test_another_accounts_lock_does_not_keep_a_dead_lease(
    directory: LeaseDirectory, holder: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = holder("")
    (record,) = leases.live(directory)
    path = f"{directory.path}/lease-{record.id}"
    code = (
        "import fcntl, os, sys\nfile = open(sys.argv[1])\nos.setuid(54321)\nprint(flush=True)\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\nprint(flush=True)\nsys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, path]
    stranger = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert stranger.stdout is not None
    try:
        stranger.stdout.readline()
        process.kill()
        process.wait()
        stranger.stdout.readline()
        with leases.guard(directory):
            leases.sweep(directory)
        assert leases.live(directory) == ()
    finally:
        stranger.kill()
        stranger.communicate()
