"""`gpulab stop`: the holder is told, asked, killed; then its heirs; a mere sharer of the lock never."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpulab import config
from gpulab.allocation import stopping
from gpulab.allocation.directory import LeaseDirectory, find
from gpulab.allocation.records import pid_namespace

from .administered import first_line, gone
from .conftest import Run, Start

HOLD = "echo $GPULAB_LEASE; exec sleep 60"


def test_a_process_is_asked_at_once_and_the_gpu_is_free(gpulab: Run, start: Start, tmp_path: Path) -> None:
    holder = start("run", "--", "sh", "-c", HOLD)
    lease = first_line(holder)
    done = gpulab("stop", lease[:5])
    assert (done.returncode, done.stderr) == (0, "")
    assert f"process {holder.pid} (sleep) is asked to end (SIGTERM)" in done.stdout
    assert f"Lease {lease} has ended; free: GPU-" in done.stdout
    assert holder.wait(10) == -signal.SIGTERM
    assert [name for name in os.listdir(tmp_path / "leases") if lease in name] == []
    assert json.loads(gpulab("leases", "--json").stdout)["leases"] == []


def test_who_does_not_end_is_killed_and_then_those_who_inherited_the_lease(gpulab: Run, start: Start) -> None:
    script = 'trap "" TERM; setsid sleep 60 >&- & echo $GPULAB_LEASE $!; while :; do sleep 60; done'
    holder = start("run", "--", "sh", "-c", script)
    lease, heir = first_line(holder).split()
    done = gpulab("stop", "--grace", "0.5", lease)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "did not end and is killed (SIGKILL)" in done.stdout
    assert f"process {heir} (sleep), which inherited the lease, is asked to end" in done.stdout
    assert holder.wait(10) == -signal.SIGKILL
    assert gone(int(heir))


def test_a_waiting_request_is_ended_likewise(
    gpulab: Run, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, until: Callable[..., None]
) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "1xh100")
    holder = start("run", "--", "sh", "-c", HOLD)
    lease = first_line(holder)
    waiter = start("run", "--", "true")

    def ticket() -> str:
        names = os.listdir(tmp_path / "leases")
        return next((name.removeprefix("ticket-") for name in names if name.startswith("ticket-")), "")

    until(ticket, "a ticket")
    done = gpulab("stop", ticket())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Request ")
    assert waiter.wait(10) != 0
    assert holder.poll() is None
    assert gpulab("stop", lease).returncode == 0


@pytest.mark.parametrize("wrong", ["ffffffff", "", "../etc", "*"])
def test_an_id_that_is_nobodys_is_wrong_usage(gpulab: Run, start: Start, wrong: str) -> None:
    holder = start("run", "--", "sh", "-c", HOLD)
    first_line(holder)
    refused = gpulab("stop", wrong)
    assert refused.returncode == 64
    assert "`gpulab leases` lists them" in refused.stderr
    assert holder.poll() is None


def test_a_beginning_that_fits_two_is_wrong_usage_and_names_them(
    gpulab: Run, start: Start, tmp_path: Path
) -> None:
    first_line(start("run", "--", "sh", "-c", HOLD))
    (name,) = [name for name in os.listdir(tmp_path / "leases") if name.startswith("lease-")]
    path = tmp_path / "leases" / name
    twin = f"{name[6:13]}{'0' if name[-1] != '0' else '1'}"
    text = json.loads(path.read_text())
    other = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HOLDING,
            str(tmp_path / "leases" / f"lease-{twin}"),
            json.dumps({**text, "id": twin}),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        first_line(other)
        refused = gpulab("stop", name[6:13])
        assert refused.returncode == 64
        assert "begins 2 ids" in refused.stderr
        assert twin in refused.stderr
    finally:
        other.kill()
        other.communicate()


HOLDING = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
fcntl.flock(fd, fcntl.LOCK_EX)
os.write(fd, sys.argv[2].encode().ljust(4096))
print("holds", flush=True)
time.sleep(60)
"""

SHARING = """
import os, subprocess, sys, time
from gpulab import config
from gpulab.allocation.session import grant
from gpulab.allocation.policy import Request
from gpulab.hardware import nvml
settings = config.load()
lease = grant(Request(), nvml.snapshot(detail="choice", settings=settings), settings)
fd = lease.held.fd
environment = {**config.inherited(), "GPULAB_LEASE": lease.id, "GPULAB_KERNEL_ID": "k"}
child = subprocess.Popen(["sleep", "60"], pass_fds=(fd,), env=environment)
lease.held.describe(pid=child.pid)
print(lease.id, child.pid, flush=True)
child.wait()
print("the child is gone", flush=True)
if sys.argv[1] == "lets-go":
    lease.held.close()
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["lets-go", "keeps"])
def test_a_server_that_only_shares_the_lock_is_never_signalled(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(stopping, "_LET_GO_SECONDS", 1.0)
    server = subprocess.Popen([sys.executable, "-c", SHARING, how], stdout=subprocess.PIPE, text=True)
    try:
        lease, kernel = first_line(server).split()
        directory = find(config.load())
        fd = os.open(os.path.join(directory.path, f"lease-{lease}"), os.O_RDONLY)
        told: list[str] = []
        outcome = stopping.stop(directory, lease, fd, sentence="end it", grace=0.3, tell=told.append)
        os.close(fd)
        assert any("is a kernel: it is told, and has" in line for line in told)
        assert gone(int(kernel))
        assert server.poll() is None
        assert outcome.ended == (how == "lets-go")
        assert [keeper.pid for keeper in outcome.keepers] == ([] if how == "lets-go" else [server.pid])
        asked = stopping.stop_requested(directory, lease, os.getuid())
        assert asked == (None if how == "lets-go" else "end it")
    finally:
        server.kill()
        server.communicate()


def test_a_lease_that_names_a_stranger_gets_no_stranger_signalled(
    tmp_path: Path, gpulab: Run, start: Start
) -> None:
    """The text of a lease may say anything; only who has its lock open counts."""
    first_line(start("run", "--", "sh", "-c", HOLD))
    (name,) = [name for name in os.listdir(tmp_path / "leases") if name.startswith("lease-")]
    stranger = subprocess.Popen(["sleep", "60"])
    text = json.loads((tmp_path / "leases" / name).read_text())
    text.update(id="00000000", pid=stranger.pid, pid_started=None, since=time.time() - 60)
    liar = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(tmp_path / "leases" / "lease-00000000"), json.dumps(text)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        first_line(liar)
        fd = os.open(tmp_path / "leases" / "lease-00000000", os.O_RDONLY)
        from gpulab.allocation.keepers import keepers

        assert [keeper.pid for keeper in keepers(fd, "00000000")] == [liar.pid]
        os.close(fd)
        assert stranger.poll() is None
    finally:
        for process in (stranger, liar):
            process.kill()
            process.communicate()


@pytest.mark.parametrize("ahead", [3600, 10**400], ids=["an hour", "no time at all"])
def test_a_holder_dated_after_now_is_ended_all_the_same(tmp_path: Path, gpulab: Run, ahead: int) -> None:
    """As after the clock was set back, or from one who would rather not be stopped."""
    path = tmp_path / "leases" / "lease-0000abcd"
    text = {
        "version": 1,
        "id": "0000abcd",
        "gpus": ["GPU-1"],
        "mode": "exclusive",
        "memory_bytes": None,
        "priority": "normal",
        "pid_started": None,
        "pid_namespace": pid_namespace(),
    }
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(path), "{}"], stdout=subprocess.PIPE, text=True
    )
    try:
        first_line(holder)
        dated = json.dumps({**text, "pid": holder.pid, "since": int(time.time()) + ahead})
        path.write_bytes(dated.encode().ljust(4096))
        fd = os.open(path, os.O_RDONLY)
        outcome = stopping.stop(find(config.load()), "0000abcd", fd, sentence="end it", grace=0.3)
        os.close(fd)
        assert outcome.ended
        assert holder.wait(10) == -signal.SIGTERM
    finally:
        holder.kill()
        holder.communicate()


def test_a_later_process_of_the_same_number_is_not_signalled() -> None:
    from gpulab.allocation.keepers import HOLDER, Keeper

    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        other = Keeper(sleeper.pid, started=1, command="sleep", role=HOLDER)
        assert stopping._send(other, signal.SIGKILL) is False
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_request_to_stop_is_believed_from_the_owner_only_if_plain(tmp_path: Path) -> None:
    directory = LeaseDirectory(str(tmp_path), "account")
    me = os.getuid()
    stopping.request_stop(directory, "0a0a0a0a", "save\x1b[31m your\nwork")
    assert stopping.stop_requested(directory, "0a0a0a0a", me) == "save [31m your work"
    assert stopping.stop_requested(directory, "0b0b0b0b", me) is None
    marker = tmp_path / "stop-0a0a0a0a"
    marker.chmod(0o666)
    assert stopping.stop_requested(directory, "0a0a0a0a", me) is None
    stopping.withdraw(directory, "0a0a0a0a")
    assert os.listdir(tmp_path) == ["leases"]
    for spoil in (lambda: marker.symlink_to("/etc/hostname"), lambda: os.mkfifo(marker), marker.mkdir):
        spoil()
        assert stopping.stop_requested(directory, "0a0a0a0a", me) is None
        marker.rmdir() if marker.is_dir() and not marker.is_symlink() else marker.unlink()


def test_a_request_to_stop_a_lease_that_is_gone_is_swept_by_the_next_command(
    gpulab: Run, tmp_path: Path
) -> None:
    directory = LeaseDirectory(str(tmp_path / "leases"), "account")
    stopping.request_stop(directory, "0a0a0a0a", "too late")
    assert gpulab("run", "--", "true").returncode == 0
    assert [name for name in os.listdir(directory.path) if name.startswith("stop-")] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second account, so root")
def test_another_accounts_request_is_not_believed_and_cannot_take_the_place(passable: Path) -> None:
    shared = passable / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    directory = LeaseDirectory(str(shared), "host")
    squatter = shared / "stop-0a0a0a0a"
    squatter.write_text("give me your GPU")
    squatter.chmod(0o644)
    os.chown(squatter, 54321, 54321)
    assert stopping.stop_requested(directory, "0a0a0a0a", 54322) is None
    code = (
        "import os, sys\n"
        "from gpulab.allocation import stopping\n"
        "from gpulab.allocation.directory import LeaseDirectory\n"
        "os.setgid(54322); os.setuid(54322)\n"
        "stopping.request_stop(LeaseDirectory(sys.argv[1], 'host'), '0a0a0a0a', 'my own')"
    )
    subprocess.run([sys.executable, "-c", code, str(shared)], check=True)
    assert stopping.stop_requested(directory, "0a0a0a0a", 54322) == "my own"
    stopping.request_stop(directory, "0a0a0a0a", "of root")
    assert stopping.stop_requested(directory, "0a0a0a0a", 54322) == "of root"


def test_a_kernel_is_told_and_its_jupyter_goes_on(gpulab: Run, tmp_path: Path) -> None:
    """A real kernel with a real provisioner: it ends, and the program that started it does not."""
    from jupyter_client.manager import KernelManager

    spec = tmp_path / "kernels" / "gpu"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(
        json.dumps(
            {
                "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                "display_name": "GPU",
                "language": "python",
                "metadata": {"kernel_provisioner": {"provisioner_name": "gpulab-provisioner"}},
            }
        )
    )
    kernels = KernelManager(kernel_name="gpu")
    assert kernels.kernel_spec_manager is not None
    kernels.kernel_spec_manager.kernel_dirs = [str(tmp_path / "kernels")]
    kernels.start_kernel()
    try:
        (lease,) = json.loads(gpulab("leases", "--json").stdout)["leases"]

        def shut_down_when_dead() -> None:
            assert gone(lease["pid"], 30)
            kernels.shutdown_kernel(now=True)

        aside = threading.Thread(target=shut_down_when_dead)
        aside.start()
        done = gpulab("stop", "--grace", "1", lease["id"])
        aside.join()
        assert done.returncode == 0, done.stdout + done.stderr
        assert "is a kernel: it is told, and has 1 s" in done.stdout
        assert f"Lease {lease['id']} has ended" in done.stdout
    finally:
        kernels.shutdown_kernel(now=True)
