"""What every test gets: a machine of its own, so that no test sees the leases of another or of the host."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium. Of one module, because Playwright keeps an event loop running meanwhile."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None and "CI" not in os.environ:
        pytest.skip("there is no Chromium; install it (Debian: apt install chromium) to run this test")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


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


@pytest.fixture
def passable(tmp_path: Path) -> Path:
    """`tmp_path`, with every folder above it open to other accounts."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)
    return tmp_path


@pytest.fixture
def until() -> Callable[..., None]:
    """Waits for something to become true."""

    def wait(condition: Callable[[], object], what: str, timeout: float = 15.0) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
            time.sleep(0.02)

    return wait
