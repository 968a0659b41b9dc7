"""`gpulab run`: the command gets a GPU of its own, and gives it back however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpulab import config
from gpulab.allocation.directory import find
from gpulab.allocation.leases import live_leases
from gpulab.telemetry.sampling.election import lock_path, running_pid

from .conftest import Run, Start

SHOW = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'])"
SHOW_AND_WAIT = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); input()"


def running(start: Start, *options: str) -> tuple[object, str]:
    """Start a command that keeps its GPU; return the process and what it was given."""
    process = start("run", *options, "--", sys.executable, "-c", SHOW_AND_WAIT)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_the_command_sees_one_gpu_by_its_full_uuid(gpulab: Run) -> None:
    result = gpulab("run", "--", sys.executable, "-c", SHOW)
    uuid, order = result.stdout.split()
    assert uuid.startswith("GPU-")
    assert len(uuid) == 40
    assert order == "PCI_BUS_ID"
    assert result.stderr == ""
    assert live_leases(config.load()) == ()


def test_the_commands_exit_code_is_passed_on(gpulab: Run) -> None:
    assert gpulab("run", "--", sys.executable, "-c", "raise SystemExit(7)").returncode == 7


def test_several_gpus_are_all_different(gpulab: Run) -> None:
    result = gpulab("run", "--gpus", "3", "--", sys.executable, "-c", SHOW)
    assert len(set(result.stdout.split()[0].split(","))) == 3


def test_the_lease_is_the_commands_and_ends_with_sigkill(start: Start) -> None:
    process, uuid = running(start)
    (lease,) = live_leases(config.load())
    assert lease.gpus == (uuid,)
    assert lease.pid == process.pid  # type: ignore[attr-defined]
    process.kill()  # type: ignore[attr-defined]
    process.wait()  # type: ignore[attr-defined]
    assert live_leases(config.load()) == ()


@pytest.mark.parametrize("round_", range(3))
def test_sixteen_at_once_on_eight_gpus_give_eight_distinct_ones(start: Start, round_: int) -> None:
    processes = [start("run", "--no-wait", "--", sys.executable, "-c", SHOW_AND_WAIT) for _ in range(16)]
    given = []
    for process in processes:
        assert process.stdout is not None
        given.append(process.stdout.readline().strip())
    refused = [p for p, uuid in zip(processes, given, strict=True) if not uuid]
    assert len({uuid for uuid in given if uuid}) == 8
    assert [p.wait(timeout=30) for p in refused] == [75] * 8


def test_without_waiting_a_full_machine_says_who_has_it(start: Start, gpulab: Run) -> None:
    process, _ = running(start, "--gpus", "8")
    result = gpulab("run", "--no-wait", "--", "true")
    assert result.returncode == 75
    assert f"(process {process.pid}) since" in result.stderr  # type: ignore[attr-defined]
    assert len(result.stderr.splitlines()) == 1


def test_waiting_ends_when_a_gpu_is_given_back(start: Start) -> None:
    first, _ = running(start, "--gpus", "8")
    second = start("run", "--", sys.executable, "-c", SHOW)
    assert second.stderr is not None
    assert "none of 8 is free" in second.stderr.readline()
    first.communicate("\n")  # type: ignore[attr-defined]
    out, _ = second.communicate(timeout=30)
    assert out.startswith("GPU-")
    assert second.returncode == 0


def test_waiting_with_a_limit_gives_up_with_75(start: Start, gpulab: Run) -> None:
    running(start, "--gpus", "8")
    assert gpulab("run", "--wait", "0.2", "--", "true").returncode == 75


def test_a_line_tells_the_place_and_another_when_it_changes(start: Start, gpulab: Run) -> None:
    holder, _ = running(start, "--gpus", "8")
    first = start("run", "--gpus", "8", "--", "true")
    assert first.stderr is not None
    assert "for 8 GPUs, at place 1 of 1; Ctrl-C stops it" in first.stderr.readline()
    second = start("run", "--wait", "30", "--memory", "8GiB", "--", "true")
    assert second.stderr is not None
    assert "up to 30 s for 8.0 GiB of a GPU, at place 2 of 2" in second.stderr.readline()
    report = json.loads(gpulab("status", "--json").stdout)
    assert [(entry["position"], entry["gpus"], entry["pid"]) for entry in report["waiting"]] == [
        (1, 8, first.pid),
        (2, 1, second.pid),
    ]
    assert report["waiting"] == json.loads(gpulab("leases", "--json").stdout)["waiting"]
    assert "waiting, place 2: " in gpulab("leases").stdout
    assert "waiting, place 1: " in gpulab("status").stdout
    first.send_signal(signal.SIGINT)
    assert (first.wait(timeout=10), first.stderr.read()) == (130, "")
    assert "Now at place 1 of 1." in second.stderr.readline()
    holder.communicate("\n")  # type: ignore[attr-defined]
    assert second.wait(timeout=30) == 0


def test_the_end_of_a_limited_wait_names_the_place_and_leaves_no_ticket(start: Start, gpulab: Run) -> None:
    running(start, "--gpus", "8")
    result = gpulab("run", "--wait", "0.3", "--", "true")
    assert result.returncode == 75
    assert "After 300 ms of waiting, at place 1 of 1: " in result.stderr.splitlines()[-1]
    assert find(config.load()).names("ticket-") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_on_a_terminal_the_place_is_live_and_leaving_is_clean(
    start: Start, tmp_path: Path, number: signal.Signals, until: Callable[..., None]
) -> None:
    running(start, "--gpus", "8")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gpulab", "run", "--memory", "8GiB", "--", "true"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""

        def drawn() -> bool:
            nonlocal shown
            shown += os.read(ours, 4096)
            return b"Ctrl-C leaves the queue" in shown

        until(drawn, "the picture of the queue")
        process.send_signal(number)
        assert process.wait(timeout=10) == 128 + number
    rest = b""
    with contextlib.suppress(OSError):  # how a terminal says that nobody writes to it any more
        while part := os.read(ours, 4096):
            rest += part
    os.close(ours)
    text = shown.decode()
    assert "Waiting for 8.0 GiB of a GPU: place 1 of 1 (simulated machine)" in text
    assert "GPU 0, 1, 2, 3, 4, 5, 6, 7" in text
    assert b"Traceback" not in rest
    assert b"\x1b[?25h" in rest  # the cursor is back
    assert find(config.load()).names("ticket-") == []


def test_allow_cpu_runs_with_an_empty_mask_and_says_why(start: Start, gpulab: Run) -> None:
    running(start, "--gpus", "8")
    result = gpulab(
        "run",
        "--no-wait",
        "--allow-cpu",
        "--",
        sys.executable,
        "-c",
        "import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))",
    )
    assert result.stdout == "''\n"
    assert "Running on the CPU" in result.stderr


def test_a_share_is_announced_to_the_command_and_leaves_room_for_another(start: Start, gpulab: Run) -> None:
    _, first = running(start, "--memory", "8GiB")
    result = gpulab(
        "run",
        "--memory",
        "8GiB",
        "--",
        sys.executable,
        "-c",
        "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['GPULAB_MEMORY_LIMIT'])",
    )
    assert result.stdout.split() == [first, str(8 * 2**30)]


def test_an_inherited_mask_bounds_the_choice(gpulab: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    uuids = [d["uuid"] for d in json.loads(gpulab("status", "--json").stdout)["devices"]]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuids[5])
    assert gpulab("run", "--", sys.executable, "-c", SHOW).stdout.split()[0] == uuids[5]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-ffffffff")
    result = gpulab("run", "--", "true")
    assert result.returncode == 69
    assert "outside CUDA_VISIBLE_DEVICES" in result.stderr


INNER = f"""
import os, subprocess, sys
print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
subprocess.run([sys.executable, "-m", "gpulab", "run", "--", sys.executable, "-c", {SHOW!r}])
"""


def test_a_run_inside_a_run_gets_another_gpu_within_the_mask_from_outside(gpulab: Run) -> None:
    result = gpulab("run", "--", sys.executable, "-c", INNER)
    outer, inside = (line.split()[0] for line in result.stdout.splitlines())
    assert outer != inside


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--gpus", "9", "--", "true"], 69, "this machine has 8 to hand out; ask for at most 8"),
        (["--gpus", "0", "--", "true"], 64, "ask for one or more"),
        (["--gpus", "two", "--", "true"], 64, "invalid int value"),
        (["--memory", "8Gigs", "--", "true"], 64, "'8Gigs' is not a size; write for example 8GiB"),
        (["--memory", "1e400", "--", "true"], 64, "'1e400' is too large for a size"),
        (["--memory", "900GiB", "--", "true"], 69, "can be leased of it"),
        (["--policy", "fastest", "--", "true"], 64, "There is no policy 'fastest'; choose idlest"),
        (["--wait", "soon", "--", "true"], 64, "'soon' is not a duration"),
        (["--wait", "1e400", "--", "true"], 64, "'1e400' is too large for a duration"),
        ([], 64, "write `gpulab run -- COMMAND`"),
        (["--", ""], 64, "write `gpulab run -- COMMAND`"),
        (["--nonsense", "--", "true"], 64, "nonsense"),
        (["--", "no-such-command-anywhere"], 127, "was not found"),
        (["--", "/etc/passwd"], 126, "check its permissions"),
    ],
)
def test_wrong_usage_gives_one_sentence_and_its_code(
    gpulab: Run, words: list[str], code: int, sentence: str
) -> None:
    result = gpulab("run", *words)
    assert (result.returncode, result.stdout) == (code, "")
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_script_that_names_no_interpreter_is_told_so(gpulab: Run, tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text("echo hello\n")
    script.chmod(0o755)
    result = gpulab("run", "--", str(script))
    assert (result.returncode, result.stdout) == (126, "")
    assert "needs a first line such as #!/bin/sh" in result.stderr
    assert "permissions" not in result.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="this test asks bash for the status within a pipe")
def test_the_command_gets_the_signals_that_python_ignores(gpulab: Run) -> None:
    result = gpulab("run", "--", "bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}")
    assert result.stdout.split() == ["y", str(128 + signal.SIGPIPE)]
    assert result.stderr == ""
    status = Path("/proc/self/status")
    if status.exists():
        (mask,) = gpulab("run", "--", "sh", "-c", f"sed -n 's/^SigIgn://p' {status}").stdout.split()
        assert not int(mask, 16) & (1 << (signal.SIGXFSZ - 1))


def test_a_machine_without_a_driver_says_so_with_69(gpulab: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPULAB_SIMULATE")
    result = gpulab("run", "--", "true")
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has a GPU")
    assert result.returncode == 69
    assert "Traceback" not in result.stderr


def test_a_lease_directory_that_is_a_link_is_refused(
    gpulab: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "leases")
    monkeypatch.setenv("GPULAB_LEASE_DIR", str(tmp_path / "link"))
    result = gpulab("run", "--", "true")
    assert result.returncode == 125
    assert "is a link; name the real directory" in result.stderr


def test_a_driver_that_hangs_is_given_up(
    gpulab: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scenario = tmp_path / "hangs.json"
    scenario.write_text(
        json.dumps(
            {"devices": [{"profile": "h100", "count": 2}], "faults": [{"call": "nvmlInit*", "hang": True}]}
        )
    )
    monkeypatch.setenv("GPULAB_SIMULATE", str(scenario))
    result = gpulab("run", "--", "true")
    assert result.returncode == 69
    assert "s;" in result.stderr or "answer" in result.stderr


def test_explain_prints_each_place_with_its_reason(gpulab: Run) -> None:
    result = gpulab("run", "--explain", "--", "true")
    head, *places = result.stderr.splitlines()
    assert head == "By policy idlest, best first:"
    assert len(places) == 8
    assert all(place.startswith("GPU ") and "free" in place for place in places)


@pytest.fixture
def sampler_ends() -> Iterator[None]:
    """The sampler that a test has had started is ended with it."""
    yield
    pid = running_pid(config.load())
    if pid is not None:
        os.kill(pid, signal.SIGTERM)


@pytest.mark.usefixtures("sampler_ends")
def test_a_command_that_stays_is_sampled_though_nobody_looks(
    start: Start, until: Callable[..., None]
) -> None:
    process, _ = running(start)
    until(lambda: running_pid(config.load()), "a sampler")
    process.kill()  # type: ignore[attr-defined]
    process.wait()  # type: ignore[attr-defined]
    assert live_leases(config.load()) == ()


def test_a_command_that_has_ended_starts_no_sampler(gpulab: Run, until: Callable[..., None]) -> None:
    marker = f"GPULAB_TEST_MARKER={os.getpid()}-{time.monotonic_ns()}"
    name, _, value = marker.partition("=")
    os.environ[name] = value
    try:
        assert gpulab("run", "--", "true").returncode == 0
        assert live_leases(config.load()) == ()
    finally:
        del os.environ[name]
    until(lambda: not processes_with(marker), "the end of the process that looks after the command")
    assert not os.path.exists(lock_path(config.load()))


def test_the_command_has_no_child_that_it_does_not_know(gpulab: Run) -> None:
    code = (
        "import os, time; time.sleep(0.2)\n"
        "try: os.waitpid(-1, os.WNOHANG); print('a child')\n"
        "except ChildProcessError: print('no child')\n"
    )
    assert gpulab("run", "--", sys.executable, "-c", code).stdout == "no child\n"


def processes_with(marker: str) -> list[str]:
    """Those that were started with this in their environment, as far as they may be looked at."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if marker.encode() in entry.read_bytes():
                found.append(entry.parent.name)
    return found
