"""A simulated machine for widgets, and an end for its sampler and the pump of the test process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulab import config
from gpulab.config import Settings
from gpulab.telemetry import sampler


@pytest.fixture
def settings(own_machine: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("GPULAB_SIMULATE", "8xh100")
    settings = config.load()
    yield settings
    with contextlib.suppress(OSError):
        pid = sampler.running_pid(settings)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
