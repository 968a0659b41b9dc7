"""What `%gpu` shows of machines on which something is not known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpulab.jupyter.overview import overview


@pytest.fixture
def one_gpu(own_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU half of whose memory is in use by no process that the driver lists."""
    scenario = own_machine / "machine.json"
    scenario.write_text(json.dumps({"devices": [{"profile": "t4", "memory_used": "8GiB"}]}))
    monkeypatch.setenv("GPULAB_SIMULATE", str(scenario))


@pytest.mark.usefixtures("one_gpu")
def test_memory_that_no_listed_process_holds_does_not_look_free() -> None:
    (row,) = overview().rows
    assert row[-1] == "8.0 GiB in use by what the driver does not list"


@pytest.mark.usefixtures("one_gpu")
def test_where_leases_cannot_be_read_nothing_looks_free(
    own_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_machine / "link").symlink_to(own_machine / "leases")
    monkeypatch.setenv("GPULAB_LEASE_DIR", str(own_machine / "link"))
    (row,) = overview().rows
    assert row[-1] == "unknown: the leases cannot be read"
