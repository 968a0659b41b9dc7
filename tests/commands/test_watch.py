"""`gpulab status --watch`: a page that stays, tells when it is old, and ends with Ctrl-C."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpulab import config
from gpulab.hardware.record import latest, publish
from gpulab.telemetry.sampler import running_pid

from .conftest import Run, Start

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SIZES = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
HOLD = "print(flush=True); input()"


class Terminal:
    """A terminal in which `gpulab status --watch` runs; `until` gives the page that it shows."""

    def __init__(self, columns: int = 120, lines: int = 40, **environment: str) -> None:
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)
        self.resize(columns, lines)
        command = [sys.executable, "-m", "gpulab", "status", "--watch", "0.5"]
        inherited = {name: value for name, value in config.inherited().items() if name not in SIZES}
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**inherited, "TERM": "xterm", **environment},
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""

    def resize(self, columns: int, lines: int) -> None:
        """As a window does it, which tells the programs in it by a signal."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read(self, seconds: float) -> bool:
        """Take what has come; whether the program may still write."""
        if not select.select([self.master], [], [], seconds)[0]:
            return True
        try:
            self.text += os.read(self.master, 65536).decode(errors="replace")
        except OSError:  # how Linux says that the other end is closed
            return False
        return True

    def until(self, check: Callable[[str], object], seconds: float = 30.0) -> str:
        """The first page that `check` likes, without colours; the last may not be whole yet."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            going_on = self.read(0.1)
            page = CODES.sub("", ["", *self.text.split("\x1b[H")][-2])
            if check(page):
                return page
            assert going_on, f"it ended with {self.process.wait()}: {self.text[-2000:]}"
        raise AssertionError(f"it was not shown in time: {self.text[-2000:]}")

    def end(self) -> int:
        """Press Ctrl-C, and read on until it has ended."""
        self.process.send_signal(signal.SIGINT)
        while self.read(10):
            pass
        return self.process.wait(timeout=10)


@pytest.fixture
def watch() -> Iterator[Callable[..., Terminal]]:
    """Starts it; at the end neither it nor the sampler it started is left."""
    terminals: list[Terminal] = []

    def begin(*size: int, **environment: str) -> Terminal:
        terminals.append(Terminal(*size, **environment))
        return terminals[-1]

    yield begin
    for terminal in terminals:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.master)
    pid = running_pid(config.load())
    if pid is not None:
        os.kill(pid, signal.SIGTERM)


def test_it_shows_the_gpus_follows_them_and_ends_with_ctrl_c(
    watch: Callable[..., Terminal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = tmp_path / "machine.json"

    def write(percent: int, **more: object) -> None:
        new = scenario.with_suffix(".new")
        device = {"profile": "h100", "count": 8, "utilization": percent}
        new.write_text(json.dumps({"devices": [device], **more}))
        os.replace(new, scenario)

    write(11)
    monkeypatch.setenv("GPULAB_SIMULATE", str(scenario))
    terminal = watch()
    page = terminal.until(lambda page: page.count("11 %") == 8)
    assert page.count("free") == 8
    assert "simulated machine" in page
    write(77)
    terminal.until(lambda page: page.count("77 %") == 8)
    write(77, faults=[{"call": "nvmlInit*", "code": 18}, {"call": "nvmlDeviceGetCount*", "code": 1}])
    terminal.until(lambda page: "The NVIDIA driver was upgraded while the old one is still loaded" in page)
    assert terminal.end() in (0, 130)
    assert "Traceback" not in terminal.text
    assert terminal.text.rindex("\x1b[?1049h") < terminal.text.rindex("\x1b[?1049l")  # the screen is back
    assert terminal.text.rindex("\x1b[?25l") < terminal.text.rindex("\x1b[?25h")  # and so is the cursor
    assert termios.tcgetattr(terminal.master)[:4] == terminal.before[:4]


def page_lines(page: str) -> list[str]:
    return [line.rstrip() for line in page.replace("\r", "").split("\n")]


def machine(path: Path, monkeypatch: pytest.MonkeyPatch, **more: object) -> Callable[..., None]:
    """Describes the simulated machine; the function that it gives describes it anew."""

    def describe(**more: object) -> None:
        new = path / "machine.new"
        new.write_text(json.dumps(more))
        os.replace(new, path / "machine.json")

    describe(**more)
    monkeypatch.setenv("GPULAB_SIMULATE", str(path / "machine.json"))
    return describe


def test_it_names_holders_their_shares_and_who_waits_on_80_columns(
    watch: Callable[..., Terminal], start: Start
) -> None:
    for options in (("--gpus", "7"), ("--memory", "8GiB"), ("--memory", "20GiB")):
        process = start("run", *options, "--", sys.executable, "-c", HOLD)
        assert process.stdout is not None
        process.stdout.readline()
    start("run", "--gpus", "3", "--", "true")
    page = watch(80, 24).until(lambda page: "waiting, place 1" in page)
    lines = page_lines(page)
    assert max(map(len, lines)) <= 80
    assert page.count(" whole (") == 7
    shared = next(place for place, line in enumerate(lines) if " 8.0 GiB (" in line)
    assert " 20 GiB (" in lines[shared + 1]
    assert lines[shared + 1].index("20 GiB") >= lines[shared].index(
        "8.0 GiB"
    )  # below, with no GPU of its own
    assert "3 GPUs" in next(line for line in lines if "waiting, place 1" in line)


def test_what_has_no_room_is_counted_and_a_larger_window_shows_it(
    watch: Callable[..., Terminal], start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(tmp_path, monkeypatch, devices=[{"profile": "h100", "count": 16}])
    process = start("run", "--gpus", "2", "--", sys.executable, "-c", HOLD)
    assert process.stdout is not None
    process.stdout.readline()
    terminal = watch(80, 24)
    page = terminal.until(lambda page: page.count(" whole (") == 2)
    assert page.count("free") == 14  # sixteen GPUs on 24 lines
    assert "more GPU" not in page
    terminal.resize(60, 12)
    page = terminal.until(lambda page: "more GPUs" in page)
    (line,) = (line for line in page_lines(page) if "more GPUs" in line)
    told = re.search(r"and (\d+) more GPUs: (\d+) free, (\d+) in use", line)
    assert told is not None
    hidden, free, used = map(int, told.groups())
    shown = [line for line in page_lines(page) if re.match(r" *\d+  ", line)]
    assert len(shown) + hidden == 16
    assert sum("free" in line for line in shown) + free == 14
    assert free + used == hidden
    terminal.resize(200, 40)
    terminal.until(lambda page: "last 10 minutes" in page and page.count("free") == 14)


@pytest.mark.parametrize(
    "environment", [{"PYTHONIOENCODING": "ascii"}, {"NO_COLOR": "1"}], ids=["ascii", "no colour"]
)
def test_it_says_the_same_without_blocks_and_without_colours(
    watch: Callable[..., Terminal],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
) -> None:
    device = {"profile": "h100", "timeline": {"utilization": 50, "memory_used": "40GiB"}}
    machine(tmp_path, monkeypatch, devices=[device])
    terminal = watch(80, 24, **environment)
    page = terminal.until(lambda page: "50 %" in page)
    assert "40.0/80 GiB" in page
    assert "simulated machine" in page
    if "NO_COLOR" in environment:
        assert "████────" in page
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", terminal.text)
    else:
        assert "####----" in page
        assert CODES.sub("", terminal.text).isascii()


def test_a_gpu_that_hangs_is_called_so_since_when_it_last_answered(
    watch: Callable[..., Terminal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = [{"profile": "h100", "count": 2}]
    describe = machine(tmp_path, monkeypatch, devices=devices)
    terminal = watch(80, 24)
    terminal.until(lambda page: page.count("free") == 2)
    describe(devices=devices, faults=[{"call": "nvmlDeviceGetMemoryInfo*", "gpu": 1, "hang": True}])
    page = terminal.until(lambda page: re.search(r"unresponsive since \d\d:\d\d \(\d+ s\)", page))
    assert page.index("GPU 1 did not answer within") < page.index("busy")  # told on top
    assert page.count("free") == 1
    describe(devices=devices)
    terminal.until(lambda page: page.count("free") == 2 and "did not answer" not in page)


def test_a_pause_is_told_with_the_way_out_of_it(watch: Callable[..., Terminal], gpulab: Run) -> None:
    terminal = watch(80, 24)
    terminal.until(lambda page: page.count("free") == 8)
    gpulab("pause")
    page = terminal.until(lambda page: "GPUs: paused" in page)
    assert "gpulab resume" in " ".join(page.split())
    assert "GPUs: paused" in gpulab("status").stdout
    gpulab("resume")
    terminal.until(lambda page: page.count("free") == 8)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_that_is_closed_or_a_kill_gives_the_screen_back(
    watch: Callable[..., Terminal], number: int
) -> None:
    terminal = watch(80, 24)
    terminal.until(lambda page: page.count("free") == 8)
    terminal.process.send_signal(number)
    while terminal.read(10):
        pass
    assert terminal.process.wait(timeout=10) == 128 + number
    assert terminal.text.rindex("\x1b[?1049h") < terminal.text.rindex("\x1b[?1049l")


def test_figures_that_are_old_are_called_so(watch: Callable[..., Terminal]) -> None:
    terminal = watch()
    terminal.until(lambda page: page.count("free") == 8)
    pid = running_pid(config.load())
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        page = terminal.until(lambda page: "No data for " in page)
        assert "these figures are old" in page
        assert page.count("free") == 8
    finally:
        os.kill(pid, signal.SIGCONT)
    terminal.until(lambda page: "No data for " not in page and page.count("free") == 8)


def test_an_old_record_is_replaced_before_anybody_takes_it_for_new(watch: Callable[..., Terminal]) -> None:
    first = watch()
    first.until(lambda page: page.count("free") == 8)
    first.end()
    settings = config.load()
    pid = running_pid(settings)
    snapshot = latest(settings)
    assert pid is not None
    assert snapshot is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        publish(snapshot._replace(time=time.time() - 7200), settings)
        page = watch().until(lambda page: page.count("free") == 8)
        assert "No data for 2 h 00 min; these figures are old" in page
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_data_directory_that_cannot_be_written_is_named_with_the_remedy(
    watch: Callable[..., Terminal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("GPULAB_DATA_DIR", str(tmp_path / "file" / "data"))
    terminal = watch()
    page = terminal.until(lambda page: "cannot be written" in " ".join(page.split()))
    assert "The sampler cannot be started" in page
    assert "set GPULAB_DATA_DIR to a directory of yours" in " ".join(page.split())
    assert terminal.end() in (0, 130)
