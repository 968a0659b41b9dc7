"""Real kernels and a real Jupyter server on a simulated machine, each with directories of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

import gpulab.jupyter
from gpulab.allocation import leases
from gpulab.allocation.directory import LeaseDirectory
from gpulab.allocation.leases import LeaseRecord

TOKEN = "of-this-test"
IPYKERNEL = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
GPU_KERNEL = [*IPYKERNEL, "--IPKernelApp.extra_extensions=gpulab"]


def until(condition: Callable[[], Any], what: str, seconds: float = 30) -> Any:
    """Look until it is so, and return what was found; other processes tell nothing when they are done."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)
    return found


def write_kernelspec(
    share: Path,
    name: str,
    argv: list[str] | None = None,
    env: dict[str, str] | None = None,
    **options: Any,
) -> None:
    """A kernelspec with the provisioner, below share/kernels."""
    directory = share / "kernels" / name
    directory.mkdir(parents=True)
    provisioner = {"provisioner_name": "gpulab-provisioner", "config": options}
    spec = {
        "argv": GPU_KERNEL if argv is None else argv,
        "display_name": name,
        "language": "python",
        "env": env or {},
        "metadata": {"kernel_provisioner": provisioner},
    }
    (directory / "kernel.json").write_text(json.dumps(spec))


class Session:
    """A running kernel as its user sees it."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self.client = client
        client.start_channels(hb=False)  # on a busy machine a starting kernel misses its heartbeats
        client.wait_for_ready(timeout=60)

    def messages(self, code: str) -> list[dict[str, Any]]:
        """What the cell shows: the contents of its output messages, each with its kind."""
        shown: list[dict[str, Any]] = []

        def note(message: dict[str, Any]) -> None:
            shown.append({"kind": message["msg_type"], **message["content"]})

        self.client.execute_interactive(code, timeout=60, output_hook=note, allow_stdin=False)
        return shown

    def run(self, code: str) -> str:
        """What the cell prints, its errors and displays as text included."""
        parts = []
        for shown in self.messages(code):
            parts.append(shown.get("text", ""))
            parts.append(shown.get("data", {}).get("text/plain", ""))
            parts.append(shown.get("evalue", ""))
        return "".join(parts)

    def value(self, expression: str) -> str:
        """The value of an expression, after whatever the kernel had to say first."""
        return self.run(f"print('\\x1e' + str({expression}))").rpartition("\x1e")[2].strip()

    def mask(self) -> str:
        return self.value("__import__('os').environ.get('CUDA_VISIBLE_DEVICES')")

    def pid(self) -> int:
        return int(self.value("__import__('os').getpid()"))


class Place:
    """Where this test's kernelspecs and leases lie."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.share = root / "share"
        self.leases = LeaseDirectory(str(root / "leases"), "account")
        os.makedirs(self.leases.path, mode=0o700, exist_ok=True)
        self.machine = self.scenario(devices=[{"profile": "t4", "count": 4}])  # at rest, so the first is best

    def environment(self) -> dict[str, str]:
        return {
            "GPULAB_SIMULATE": self.machine,
            "GPULAB_LEASE_DIR": self.leases.path,
            "GPULAB_DATA_DIR": str(self.root / "data"),
            "JUPYTER_PATH": str(self.share),
            "JUPYTER_CONFIG_PATH": os.path.dirname(gpulab.jupyter.__file__),
            "JUPYTER_CONFIG_DIR": str(self.root / "config"),
            "JUPYTER_RUNTIME_DIR": str(self.root / "runtime"),
            "IPYTHONDIR": str(self.root / "ipython"),
        }

    def live(self) -> tuple[LeaseRecord, ...]:
        return leases.live(self.leases)

    def lease(self) -> LeaseRecord:
        """The only lease there is."""
        (lease,) = self.live()
        return lease

    def spec(self, name: str, argv: list[str] | None = None, **more: Any) -> str:
        write_kernelspec(self.share, name, argv, **more)
        return name

    def scenario(self, **content: Any) -> str:
        """A machine described in a file."""
        path = self.root / f"machine-{len(list(self.root.glob('machine-*')))}.json"
        path.write_text(json.dumps(content))
        return str(path)

    until = staticmethod(until)

    @contextlib.contextmanager
    def talk(self, manager: KernelManager) -> Iterator[Session]:
        """Cells in a kernel of this process."""
        session = Session(manager.client())
        try:
            yield session
        finally:
            session.client.stop_channels()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A simulated machine for kernels that this process starts."""
    here = Place(tmp_path)
    for name, value in here.environment().items():
        monkeypatch.setenv(name, value)
    here.spec("gpu")
    return here


@pytest.fixture
def start(place: Place) -> Iterator[Callable[..., KernelManager]]:
    """Start kernels under a plain KernelManager; they are shut down at the end."""
    started: list[KernelManager] = []

    def start_kernel(name: str = "gpu", **kwargs: Any) -> KernelManager:
        manager = KernelManager(kernel_name=name)
        started.append(manager)
        manager.start_kernel(**kwargs)
        return manager

    yield start_kernel
    for manager in started:
        with contextlib.suppress(RuntimeError):
            manager.shutdown_kernel(now=True)


class Server:
    """A Jupyter server in a process of its own."""

    def __init__(self, place: Place, **environment: str) -> None:
        self.place = place
        self.log = place.root / f"server-{len(list(place.root.glob('server-*')))}.log"
        command = [
            *(sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"),
            *(
                "--ServerApp.port=0",
                f"--IdentityProvider.token={TOKEN}",
                f"--ServerApp.root_dir={place.root}",
            ),
            *("--AsyncIOLoopKernelRestarter.time_to_dead=0.2", "--ServerApp.terminals_enabled=False"),
        ]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **place.environment(), **environment},
                cwd=place.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        record = place.root / "runtime" / f"jpserver-{self.process.pid}.json"
        until(lambda: record.exists() or self.process.poll() is not None, "the server's start", 60)
        assert record.exists(), self.log.read_text()
        until(lambda: record.read_text().endswith("}"), "the server's record")
        self.url = json.loads(record.read_text())["url"]
        until(self._listens, "the server's listening")  # which it does after it has written the record

    def _listens(self) -> bool:
        try:
            return self.ask("GET", "api/status")[0] == 200
        except OSError:
            return False

    def ask(self, method: str, path: str, body: Any = None, token: str = TOKEN) -> tuple[int, Any]:
        """The status code and the decoded answer."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text, code = answer.read(), answer.status
        except urllib.error.HTTPError as error:
            text, code = error.read(), error.code
        return code, json.loads(text) if text.startswith((b"{", b"[")) else None

    def start(self, name: str = "gpu") -> str:
        """Start a kernel and return its id."""
        code, model = self.ask("POST", "api/kernels", {"name": name})
        assert code == 201, model
        return str(model["id"])

    def shut_down(self, kernel_id: str) -> None:
        assert self.ask("DELETE", f"api/kernels/{kernel_id}")[0] == 204

    def kernels(self) -> list[str]:
        return [model["id"] for model in self.ask("GET", "api/kernels")[1]]

    @contextlib.contextmanager
    def talk(self, kernel_id: str) -> Iterator[Session]:
        client = BlockingKernelClient()
        client.load_connection_file(str(self.place.root / "runtime" / f"kernel-{kernel_id}.json"))
        session = Session(client)
        try:
            yield session
        finally:
            client.stop_channels()

    def end(self, signum: int = signal.SIGTERM) -> int:
        """Signal the server and return its exit code."""
        self.process.send_signal(signum)
        try:
            return self.process.wait(timeout=30)
        finally:
            self.process.kill()


@pytest.fixture
def new_server(place: Place) -> Iterator[Callable[..., Server]]:
    """Servers that a test may break."""
    started: list[Server] = []

    def start_server(**environment: str) -> Server:
        started.append(Server(place, **environment))
        return started[-1]

    yield start_server
    for running in started:
        running.process.kill()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that leave no kernel behind."""
    place = Place(tmp_path_factory.mktemp("server"))
    place.spec("gpu")
    running = Server(place)
    yield running
    running.end()
