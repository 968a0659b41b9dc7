"""A GPU kernel against a plain kernel, started in turn with a sampler running; and our own CPU time."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from jupyter_client.manager import KernelManager

from benchmarks.pairs import Pair, report

__all__ = ["run"]

_OWN_MILLISECONDS = 60.0


def run(repeats: int = 30) -> bool:
    """Start both kernels in turn and compare the medians of the time to the first answer."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        os.environ.update(GPULAB_SIMULATE="8xh100", GPULAB_LEASE_DIR=folder, GPULAB_DATA_DIR=f"{folder}/data")
        from gpulab import config
        from gpulab.hardware.record import latest
        from gpulab.telemetry import sampler

        sampler.ensure(config.load())
        while latest(config.load(), max_age=2) is None:
            sampler.touch(config.load())
            time.sleep(0.05)
        _start("gpulab"), _start("python3")
        samples = [(_start("gpulab"), _start("python3")) for _ in range(repeats)]
        ours, plain = (statistics.median(side) for side in zip(*samples, strict=True))
        own = _own_cpu_milliseconds()
    kept = own <= _OWN_MILLISECONDS
    print(
        f"{'ok  ' if kept else 'OVER'}  CPU time of pre_launch and extension: {own:.1f} ms (limit 60)",
        flush=True,
    )
    return report(Pair("GPU kernel against plain kernel", ours, plain, 1.10)) and kept


def _start(name: str) -> float:
    from gpulab import config
    from gpulab.telemetry import sampler

    sampler.touch(config.load())
    begin = time.perf_counter()
    kernel = KernelManager(kernel_name=name)
    kernel.start_kernel(stderr=subprocess.DEVNULL)
    client = kernel.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        return time.perf_counter() - begin
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


_OWN = """
import time, IPython.core.interactiveshell as shell, jupyter_client.provisioning.local_provisioner
ip = shell.InteractiveShell.instance()
import asyncio, concurrent.futures, tornado.web
start = time.process_time()
import gpulab
gpulab.load_ipython_extension(ip)
from gpulab.jupyter import provisioner
from gpulab import config
from gpulab.allocation.policy import Request
from gpulab.allocation.session import grant
from gpulab.hardware.observe import observe
settings = config.load()
lease = grant(Request(), observe(settings=settings), settings)
print((time.process_time() - start) * 1e3)
"""


def _own_cpu_milliseconds() -> float:
    """What the provisioner's decision and the extension cost a process that is Jupyter already."""
    runs = []
    for _ in range(5):
        result = subprocess.run([sys.executable, "-c", _OWN], capture_output=True, text=True, check=True)
        runs.append(float(result.stdout.splitlines()[-1]))
    return statistics.median(runs)
