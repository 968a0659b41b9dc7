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

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A terminal of 120 columns in which `gpulab status --watch` runs; `shown` is the page it shows now."""

    def __init__(self) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        command = [sys.executable, "-m", "gpulab", "status", "--watch", "0.5"]
        environment = {**config.inherited(), "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.text = ""

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
def watch() -> Iterator[Callable[[], Terminal]]:
    """Starts it; at the end neither it nor the sampler it started is left."""
    terminals: list[Terminal] = []

    def begin() -> Terminal:
        terminals.append(Terminal())
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
    watch: Callable[[], Terminal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_figures_that_are_old_are_called_so(watch: Callable[[], Terminal]) -> None:
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


def test_an_old_record_is_replaced_before_anybody_takes_it_for_new(watch: Callable[[], Terminal]) -> None:
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
    watch: Callable[[], Terminal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("GPULAB_DATA_DIR", str(tmp_path / "file" / "data"))
    terminal = watch()
    page = terminal.until(lambda page: "cannot be written" in " ".join(page.split()))
    assert "The sampler cannot be started" in page
    assert "set GPULAB_DATA_DIR to a directory of yours" in " ".join(page.split())
    assert terminal.end() in (0, 130)
