"""Other processes, and other accounts, that hold and wait."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpulab.allocation.directory import LeaseDirectory, set_up_host

Script = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def script() -> Iterator[Script]:
    """Starts a Python process, and waits until it has printed a line unless told not to."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *, ready: bool = True) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        started.append(process)
        if ready:
            assert process.stdout is not None
            assert process.stdout.readline().strip(), process.communicate(timeout=10)[1]
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A simulated machine with two GPUs at rest, whose file a test may change."""
    path = tmp_path / "machine.json"
    path.write_text(json.dumps({"devices": [{"profile": "h100", "count": 2, "utilization": 0}]}))
    monkeypatch.setenv("GPULAB_SIMULATE", str(path))
    return path


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[LeaseDirectory]:
    """A lease directory of the whole host, as root sets it up, where every account may look."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be several accounts")
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        os.chmod(folder, 0o755)
        directory = set_up_host(os.path.join(folder, "host"))
        monkeypatch.setenv("GPULAB_LEASE_DIR", directory.path)
        yield directory
