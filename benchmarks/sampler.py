"""The sampler beside nvitop's ResourceMetricCollector: both at once at 1 Hz, 8 GPUs with 4 processes each."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from benchmarks.pairs import PYTHON

__all__ = ["run"]

_GPUS, _EACH = 8, 4
_CALLS_PER_GPU = 7.0
_SHARE = 1 / 3
_MEGABYTES = 45.0
_WARM_UP_SECONDS = 4.0
_FAST = """
import sys
from gpulab.hardware import nvml
nvml.snapshot(detail="full")
open(sys.argv[1], "w").close()
for _ in range(10):
    nvml.snapshot(detail="fast")
"""
_PEER = """
import sys, time
from gpulab import config
from gpulab.hardware import simulated
simulated.install(config.load().simulate)
from nvitop import Device, ResourceMetricCollector
collector = ResourceMetricCollector(Device.all(), root_pids=set(map(int, sys.argv[1:])) or None, interval=1.0)
seen = []
collector.daemonize(lambda metrics: seen.append(len(metrics)) or True, interval=1.0)
time.sleep(1000)
"""


def run(seconds: float = 40.0) -> bool:
    """Measure both for `seconds`, as processes of their own; CPU time from the kernel's accounts."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        os.chmod(folder, 0o700)
        workers = [stack.enter_context(_process(["sleep", "1000"])) for _ in range(_GPUS * _EACH)]
        scenario = _scenario(Path(folder), [worker.pid for worker in workers])
        environ = {
            **os.environ,
            "GPULAB_SIMULATE": str(scenario),
            "GPULAB_LEASE_DIR": folder,
            "GPULAB_DATA_DIR": str(Path(folder) / "data"),
        }
        calls = _calls(Path(folder), environ)
        command = [PYTHON, "-m", "gpulab.telemetry.sampler", "--idle-seconds", "1000"]
        ours = stack.enter_context(_process(command, environ))
        alone = stack.enter_context(_process([PYTHON, "-c", _PEER], environ))
        whole = stack.enter_context(_process([PYTHON, "-c", _PEER, str(os.getpid())], environ))
        shares = _shares((ours, alone, whole), seconds)
        resident = _resident_megabytes(ours)
        _check(Path(folder), seconds)
    return all([*_report(calls, shares, resident)])


def _scenario(folder: Path, pids: list[int], **more: object) -> Path:
    processes = [
        {"gpu": number // _EACH, "pid": pid, "memory": "4GiB", "gpu_percent": 10.0}
        for number, pid in enumerate(pids)
    ]
    path = folder / ("counted.json" if more else "machine.json")
    machine = {"devices": [{"profile": "h100", "count": _GPUS}], "processes": processes, **more}
    path.write_text(json.dumps(machine))
    return path


def _calls(folder: Path, environ: Mapping[str, str]) -> float:
    """NVML calls per GPU of one look in the fast tier."""
    log = folder / "calls"
    scenario = _scenario(folder, [os.getpid()] * _GPUS * _EACH, call_log=str(log))
    environ = {**environ, "GPULAB_SIMULATE": str(scenario)}
    subprocess.run([PYTHON, "-c", _FAST, str(log)], env=environ, check=True)
    lines = [line for line in log.read_text().splitlines() if line.startswith("nvmlDevice")]
    return len(lines) / 10 / _GPUS


def _shares(processes: tuple[subprocess.Popen[bytes], ...], seconds: float) -> list[float]:
    """The share of a core that each takes, over the same seconds."""
    time.sleep(_WARM_UP_SECONDS)
    before = [_cpu_seconds(process.pid) for process in processes]
    begun = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - begun
    assert all(process.poll() is None for process in processes)
    return [
        (_cpu_seconds(process.pid) - start) / took for process, start in zip(processes, before, strict=True)
    ]


def _cpu_seconds(pid: int) -> float:
    """Of all its threads, also those that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_megabytes(process: subprocess.Popen[bytes]) -> float:
    """The most that it ever had."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


@contextmanager
def _process(
    command: list[str], environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _check(folder: Path, seconds: float) -> None:
    """That it really did its work: everything seen, and each second kept."""
    (machine,) = (folder / "data").iterdir()
    newest = json.loads((machine / "latest.json").read_text())
    assert [len(device["processes"]) for device in newest["devices"]] == [_EACH] * _GPUS
    with closing(sqlite3.connect(machine / "history.sqlite")) as history:
        assert history.execute("SELECT count(*) FROM raw").fetchone()[0] >= _GPUS * (seconds - 1)


def _report(calls: float, shares: list[float], resident: float) -> Iterator[bool]:
    ours, alone, whole = (100 * share for share in shares)
    processor = (
        f"{ours:.2f} % of a core against {alone:.2f} % of nvitop's collector ({whole:.2f} % where it "
        f"follows the processes too): ratio {ours / alone:.2f} (limit 0.33)"
    )
    for kept, text in (
        (calls <= _CALLS_PER_GPU + 0.2, f"{calls:.1f} NVML calls per GPU in the fast tier (limit 7)"),
        (ours <= _SHARE * alone, processor),
        (resident <= _MEGABYTES, f"{resident:.1f} MB resident (limit {_MEGABYTES:.0f})"),
    ):
        print(f"{'ok  ' if kept else 'OVER'}  sampler, 8 GPUs, 32 processes: {text}", flush=True)
        yield kept
