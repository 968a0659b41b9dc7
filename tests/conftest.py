"""What every test gets: a machine of its own, so that no test sees the leases of another or of the host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lease and data directories of the test's own, no mask, no lease, no user's settings."""
    for name in [name for name in os.environ if name.startswith("GPULAB_")]:
        monkeypatch.delenv(name)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "JPY_SESSION_NAME"):
        monkeypatch.delenv(name, raising=False)
    leases = tmp_path / "leases"
    leases.mkdir(mode=0o700)
    monkeypatch.setenv("GPULAB_LEASE_DIR", str(leases))
    monkeypatch.setenv("GPULAB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path
