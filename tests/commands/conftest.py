"""The command line as a user calls it: a process of its own on the simulated machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "8xh100")


@pytest.fixture
def gpulab() -> Run:
    """Runs `gpulab WORDS` to its end."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpulab", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts `gpulab WORDS`, and kills what is left of it at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpulab", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()
