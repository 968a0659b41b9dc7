"""Real servers in places of their own, ended by their process id, and a real Chromium in front of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import pytest
from playwright.sync_api import Browser, BrowserContext, Page

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
MACHINE = "8xh100"


class Place:
    """A home, the directories of Jupyter and gpulab, an environment: nothing of the account is touched."""

    def __init__(self, root: Path, **variables: str) -> None:
        self.root = root
        self.work = root / "work"
        self.work.mkdir(parents=True)
        leases = root / "leases"
        leases.mkdir(mode=0o700)
        share = root / "share" / "jupyter"
        templates = share / "voila" / "templates"
        templates.mkdir(parents=True)
        # An editable install has copied the template; what is tested is the one in the tree.
        (templates / "gpulab").symlink_to(ROOT / "dashboards" / "template")
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("GPULAB_", "JUPYTER", "XDG_", "CUDA_"))
        }
        self.environ = {
            **inherited,
            "HOME": str(root),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "JUPYTER_CONFIG_DIR": str(root / "jupyter"),
            "JUPYTER_DATA_DIR": str(root / "data"),
            "JUPYTER_RUNTIME_DIR": str(root / "runtime"),
            "JUPYTER_PATH": str(share),
            "JUPYTERLAB_SETTINGS_DIR": str(root / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(root / "workspaces"),
            "IPYTHONDIR": str(root / "ipython"),
            "MPLCONFIGDIR": str(root / "matplotlib"),
            "GPULAB_LEASE_DIR": str(leases),
            "GPULAB_DATA_DIR": str(root / "gpulab"),
            "GPULAB_SIMULATE": MACHINE,
            "PYTHONFAULTHANDLER": "1",
            **variables,
        }
        self.gpulab("kernel", "install", "--prefix", str(root))

    def gpulab(self, *words: str) -> str:
        """What `gpulab WORDS` prints here."""
        command = [sys.executable, "-m", "gpulab", *words]
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    def put_notebook(self, name: str, cells: list[str]) -> None:
        """A notebook of code cells for the GPU kernel."""
        book = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": "gpulab", "display_name": "Python 3 (GPU)"}},
        )
        nbformat.write(book, self.work / f"{name}.ipynb")

    def leases(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = json.loads(self.gpulab("leases", "--json"))["leases"]
        return entries

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A process of ours, its output in a file beside the others."""
        with open(self.root / f"{words[0]}.log", "a", encoding="utf-8") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "gpulab", *words],
                env=self.environ,
                cwd=self.work,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
            )


class Server(NamedTuple):
    """A Jupyter server that answers."""

    place: Place
    url: str
    token: str

    def address(self, path: str = "") -> str:
        return f"{self.url}{path}{'&' if '?' in path else '?'}token={self.token}"


def serving(place: Place, *words: str) -> Iterator[Server]:
    """Start `gpulab WORDS`, wait until Jupyter has written where it listens, and end it by its id."""
    process = place.start(*words)
    try:
        found = Path(place.environ["JUPYTER_RUNTIME_DIR"]) / f"jpserver-{process.pid}.json"
        wait_until(lambda: found.exists() or process.poll() is not None, START_SECONDS)
        assert process.poll() is None, log_of(place, words[0])
        record = json.loads(found.read_text(encoding="utf-8"))
        yield Server(place, record["url"], record["token"])
        process.send_signal(signal.SIGTERM)
        assert ended(process), f"the server does not stop:\n{log_of(place, words[0])[-8000:]}"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def ended(process: subprocess.Popen[str]) -> bool:
    """Whether it ends by itself; otherwise every thread's stack goes into its log (PYTHONFAULTHANDLER)."""
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        process.wait()
        return False
    return True


def log_of(place: Place, command: str) -> str:
    return (place.root / f"{command}.log").read_text(encoding="utf-8")


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """For what offers no event to wait for: a file, or what another process prints."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so within {seconds} s"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`gpulab lab` on eight simulated GPUs, the notebooks copied, where a full machine is an error."""
    place = Place(tmp_path_factory.mktemp("lab"), GPULAB_ON_FULL="error")
    shutil.copytree(ROOT / "notebooks", place.work / "notebooks")
    quiet = {
        "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    }
    for name, settings in quiet.items():
        path = place.root / "settings" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings), encoding="utf-8")
    yield from serving(place, "lab", "--simulate", MACHINE, "--", "--no-browser", "--port=0")


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`gpulab dashboard`, where a hub has made GPU kernels the default for every kernel."""
    place = Place(tmp_path_factory.mktemp("dashboard"), JUPYTER_DEFAULT_PROVISIONER_NAME="gpulab-provisioner")
    yield from serving(place, "dashboard", "--port", "0", "--", "--no-browser")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go, to be looked at; GPULAB is not asked, since the tests clear its variables."""
    return tmp_path_factory.mktemp("pictures")


MOVED = """([selector, before]) => {
  const now = [...document.querySelectorAll(selector)].map((element) => element.innerText);
  return now.length === before.length && now.some((text, i) => text !== before[i]);
}"""


def await_movement(page: Page) -> None:
    """Until a figure of the monitor is another one."""
    figures = ".gl-power .gl-number"
    before = page.locator(figures).all_inner_texts()
    assert len(before) == 8
    page.wait_for_function(MOVED, arg=[figures, before])


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    opened = browser.new_context(viewport={"width": 1280, "height": 900})
    opened.set_default_timeout(30_000)
    yield opened
    opened.close()
