"""A simulated machine of two GPUs, and an end for every sampler that a test starts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpulab import config
from gpulab.config import Settings
from gpulab.telemetry import sampler


@pytest.fixture
def settings(own_machine: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("GPULAB_SIMULATE", "2xt4")
    settings = config.load()
    os.makedirs(settings.machine_dir, mode=0o700)
    yield settings
    with contextlib.suppress(OSError):
        pid = sampler.running_pid(settings)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(settings: Settings) -> Callable[..., subprocess.Popen[str]]:
    """Starts a sampler as a child of the test, which can then watch it end."""

    def begin(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "gpulab.telemetry.sampler", *arguments]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    return begin
