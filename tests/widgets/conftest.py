"""A simulated machine for widgets, and an end for its sampler and the pump of the test process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
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


@pytest.fixture
def until() -> Callable[..., None]:
    """Waits for something to become true."""

    def wait(condition: Callable[[], object], what: str, timeout: float = 15.0) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
            time.sleep(0.02)

    return wait
