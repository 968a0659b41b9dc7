"""With a driver that hangs: how long `/api/kernels` takes meanwhile, and when the kernel is there."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from benchmarks.pairs import PYTHON

__all__ = ["run"]

_TOKEN = "benchmark"
_LISTING_SECONDS, _START_SECONDS = 0.100, 6.0


def run() -> bool:
    """Start a GPU kernel while NVML hangs for ever, and ask the server for its kernels all the while."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        machine = Path(folder, "hangs.json")
        fault = {"call": "nvmlInit*", "hang": True}
        machine.write_text(json.dumps({"devices": [{"profile": "h100", "count": 8}], "faults": [fault]}))
        names = ("GPULAB_LEASE_DIR", "GPULAB_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")
        env = {**os.environ, **{name: f"{folder}/{name}" for name in names}, "GPULAB_SIMULATE": str(machine)}
        command = [PYTHON, "-m", "jupyter_server", "--no-browser", "--allow-root", "--port=0"]
        command += [f"--IdentityProvider.token={_TOKEN}", f"--ServerApp.root_dir={folder}"]
        server = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
        try:
            return _measure(_address(Path(folder, "JUPYTER_RUNTIME_DIR", f"jpserver-{server.pid}.json")))
        finally:
            server.terminate()
            server.wait()


def _measure(url: str) -> bool:
    begin = time.perf_counter()
    started: list[float] = []

    def start() -> None:
        _ask(f"{url}api/kernels", json.dumps({"name": "gpulab"}).encode())
        started.append(time.perf_counter() - begin)

    thread = threading.Thread(target=start)
    thread.start()
    waits = []
    while thread.is_alive():
        before = time.perf_counter()
        _ask(f"{url}api/kernels")
        waits.append(time.perf_counter() - before)
        time.sleep(0.02)
    thread.join()
    kept = max(waits) <= _LISTING_SECONDS and bool(started) and started[0] <= _START_SECONDS
    print(
        f"{'ok  ' if kept else 'OVER'}  a driver that hangs: {len(waits)} listings, the longest "
        f"{max(waits) * 1e3:.0f} ms (limit 100); the kernel is there after {started[0]:.1f} s (limit 6)",
        flush=True,
    )
    return kept


def _address(file: Path) -> str:
    """Where the server listens, once it answers."""
    while True:
        try:
            url = str(json.loads(file.read_text())["url"])
            _ask(f"{url}api/status")
        except (OSError, ValueError):
            time.sleep(0.05)
        else:
            return url


def _ask(url: str, data: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, data, {"Authorization": f"token {_TOKEN}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())
