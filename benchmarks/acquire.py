"""`acquire` in a warm process on 16 GPUs with 32 leases: our own time beside NVML's, and its calls."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.pairs import PYTHON

__all__ = ["run"]

_OWN_SECONDS = 0.010
_CALLS_PER_GPU = 9.0
_HOLD = """
import sys
from gpulab import config
from gpulab.allocation.grants import grant
from gpulab.allocation.policy import Request
from gpulab.hardware import nvml
settings = config.load()
snapshot = nvml.snapshot(detail="choice")
held = [grant(Request(memory_bytes=30 * 2**30), snapshot, settings) for _ in range(32)]
print(len({lease.gpus for lease in held}), flush=True)
sys.stdin.read()
"""
_ACQUIRE = """
import time
from gpulab import config
from gpulab.allocation import session, waiting
from gpulab.allocation.policy import Request
from gpulab.hardware import nvml
import gpulab
settings = config.load()
request = Request(memory_bytes=2**30)
driver = []
def look():
    begun = time.perf_counter()
    snapshot = nvml.snapshot(detail="choice", settings=settings)
    driver.append(time.perf_counter() - begun)
    return snapshot
for _ in range({times}):
    begun = time.perf_counter()
    lease = waiting.wait_for_grant(request, settings, look, 0)
    session.attach(lease)
    took = time.perf_counter() - begun
    print(took, driver[-1], flush=True)
    lease.held.give_up()
    session.detach(lease)
"""


def run(times: int = 41) -> bool:
    """Measure, with 32 leases held by another process; the first acquire warms up."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        log, machine = Path(folder) / "calls", Path(folder) / "machine.json"
        machine.write_text(json.dumps({"devices": [{"profile": "h100", "count": 16}], "call_log": str(log)}))
        env = {**os.environ, "GPULAB_SIMULATE": str(machine), "GPULAB_LEASE_DIR": folder}
        pipe = subprocess.PIPE
        holder = subprocess.Popen([PYTHON, "-c", _HOLD], env=env, stdin=pipe, stdout=pipe, text=True)
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            log.write_text("")
            code = _ACQUIRE.format(times=times)
            shown = subprocess.run([PYTHON, "-c", code], env=env, check=True, capture_output=True, text=True)
        finally:
            holder.kill()
            holder.wait()
        pairs = [tuple(map(float, line.split())) for line in shown.stdout.splitlines()][1:]
        calls = Counter(line.split()[0] for line in log.read_text().splitlines())
    return _report(pairs, sum(n for name, n in calls.items() if name.startswith("nvmlDevice")) / times / 16)


def _report(pairs: list[tuple[float, ...]], calls: float) -> bool:
    own = statistics.median(total - driver for total, driver in pairs)
    driver = statistics.median(driver for _, driver in pairs)
    kept = own < _OWN_SECONDS and calls <= _CALLS_PER_GPU + 0.2  # the count of devices is one for all
    print(
        f"{'ok  ' if kept else 'OVER'}  acquire, 16 GPUs, 32 leases: {own * 1e3:.1f} ms of our own "
        f"(limit {_OWN_SECONDS * 1e3:.0f}) beside {driver * 1e3:.1f} ms in NVML; {calls:.1f} calls per GPU "
        f"(limit {_CALLS_PER_GPU:.0f})",
        flush=True,
    )
    return kept
