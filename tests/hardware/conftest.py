"""Simulated machines, each with a file of its own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulab.hardware import nvml


class MachineFile:
    """The scenario that this test's processes see; `write` changes it under their hands."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, **scenario: Any) -> None:
        """Replace the machine in one step."""
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"devices": [{"profile": "h100"}], **scenario}))
        os.replace(new, self.path)

    def calls(self) -> list[list[str]]:
        """Name and GPU of each call so far, if the scenario has a call_log "calls"."""
        return [line.split()[:2] for line in (self.path.parent / "calls").read_text().splitlines()]


Machine = Callable[..., MachineFile]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Make this test's machine; at the end nothing hangs on it any more."""
    file = MachineFile(tmp_path / "machine.json")

    def make(**scenario: Any) -> MachineFile:
        file.write(**scenario)
        monkeypatch.setenv("GPULAB_SIMULATE", str(file.path))
        return file

    yield make
    if file.path.exists():
        file.write()
    nvml.shutdown()


def eventually(check: Callable[[], Any], seconds: float = 10.0) -> Any:
    """The first true value of `check`; fails if there is none in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = check()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError("it did not happen in time")
