"""A real JupyterLab in a real Chromium, on a simulated machine, for the browser tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat

from gpulab import config
from gpulab.config import Settings

TOKEN = "lab-of-a-test"
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"

_WAVE = {"wave": {"low": 5, "high": 95, "period": 12}}
_SCENARIO = {
    "devices": [
        {"profile": "h100", "count": 7, "utilization": _WAVE, "memory_used": "2GiB"},
        {"profile": "h100", "name": HOSTILE, "utilization": 0, "missing": ["power"]},
    ]
}


class Lab:
    """A JupyterLab of its own: home, leases, data, scenario; ended by `close()`."""

    def __init__(self, folder: Path, cells: list[str]) -> None:
        self.folder = folder
        (folder / "root").mkdir()
        (folder / "leases").mkdir(mode=0o700)
        (folder / "machine.json").write_text(json.dumps(_SCENARIO))
        book = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        )
        nbformat.write(book, folder / "root" / "monitor.ipynb")
        self.environ = self._environ()
        self.log = open(folder / "lab.log", "wb")  # noqa: SIM115 - closed by close()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.port=0"),
                *(f"--IdentityProvider.token={TOKEN}", "--LabApp.expose_app_in_browser=True"),
                *(f"--ServerApp.root_dir={folder / 'root'}", "--LabApp.news_url=None"),
            ],
            env=self.environ,
            cwd=folder,
            stdout=self.log,
            stderr=self.log,
        )
        self.url = self._wait_for_url()

    @property
    def settings(self) -> Settings:
        """Those of the kernels in there."""
        return config.load(self.environ)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)
        self.log.close()

    def _environ(self) -> dict[str, str]:
        names = ("home", "config", "data", "runtime", "ipython")
        home, configuration, data, runtime, ipython = (str(self.folder / name) for name in names)
        own = {name: value for name, value in os.environ.items() if not name.startswith(("GPULAB_", "CUDA_"))}
        return own | {
            "HOME": home,
            "JUPYTER_CONFIG_DIR": configuration,
            "JUPYTER_DATA_DIR": data,
            "JUPYTER_RUNTIME_DIR": runtime,
            "IPYTHONDIR": ipython,
            "GPULAB_SIMULATE": str(self.folder / "machine.json"),
            "GPULAB_DATA_DIR": str(self.folder / "gpulab"),
            "GPULAB_LEASE_DIR": str(self.folder / "leases"),
        }

    def _wait_for_url(self) -> str:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            for path in (self.folder / "runtime").glob("jpserver-*.json"):
                try:
                    return str(json.loads(path.read_text())["url"])
                except ValueError:
                    pass  # half written
            time.sleep(0.1)
        raise AssertionError((self.folder / "lab.log").read_text())
