"""What `import gpulab` costs, and what `gpulab run` costs beside nvitop's choice of a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.pairs import PYTHON, processes, report

__all__ = ["run"]

_SIMULATED_NVITOP = (
    "from gpulab import config\n"
    "from gpulab.hardware import simulated\n"
    "simulated.install(config.load().simulate)\n"
    "import nvitop\n"
    "print(nvitop.select_devices(format='uuid', max_count=1))\n"
)


def run() -> bool:
    """Measure both, on a simulated machine with eight GPUs."""
    imports = processes(
        "import gpulab against import json, argparse, sqlite3",
        [PYTHON, "-c", "import gpulab"],
        [PYTHON, "-c", "import json, argparse, sqlite3"],
        limit=1.0,
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        env = {"GPULAB_SIMULATE": "8xh100", "GPULAB_LEASE_DIR": folder}
        starts = processes(
            "gpulab run -- true against nvitop.select_devices, 8 simulated GPUs",
            [str(Path(PYTHON).with_name("gpulab")), "run", "--", "true"],
            [PYTHON, "-c", _SIMULATED_NVITOP],
            limit=0.60,
            env=env,
        )
        calls = _calls(folder)
    return all([report(imports), report(starts), calls])


def _calls(folder: str) -> bool:
    """Count NVML calls per GPU of both, from the simulator's own log."""
    counts = {}
    for name, command in (
        ("gpulab run", [PYTHON, "-m", "gpulab", "run", "--", "true"]),
        ("nvitop", [PYTHON, "-c", _SIMULATED_NVITOP]),
    ):
        log = Path(folder) / f"{name.split()[0]}.calls"
        scenario = Path(folder) / "machine.json"
        scenario.write_text(json.dumps({"devices": [{"profile": "h100", "count": 8}], "call_log": str(log)}))
        env = {**os.environ, "GPULAB_SIMULATE": str(scenario), "GPULAB_LEASE_DIR": folder}
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        lines = Counter(line.split()[0] for line in log.read_text().splitlines())
        counts[name] = sum(n for call, n in lines.items() if call.startswith("nvmlDevice")) / 8
    kept = counts["gpulab run"] <= 9.2  # the count of devices is one call for all of them
    print(f"{'ok  ' if kept else 'OVER'}  NVML calls per GPU: {counts} (limit 9)", flush=True)
    return kept
