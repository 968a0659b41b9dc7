"""What 40 idle readers cost: their own processor time, and what they add to the sampler's.

An idle reader does what an idle kernel does that once showed a monitor: its attendant sees to the sampler for
its lease, and the pump of a monitor that nobody looks at has stopped. One that looks, as
`gpulab status --watch` does, reads the whole record each second; what that costs is told beside it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpulab import config
from gpulab.telemetry import sampler

__all__ = ["run"]

_READERS = 40
_SECONDS = 20.0
_LIMIT = 0.01
_SCENARIO = "8xh100"
_READER = """
import signal, sys, time
from types import SimpleNamespace
from IPython.core.events import EventManager, available_events
import gpulab
from gpulab import config
from gpulab.hardware import record
from gpulab.jupyter.attendant import Attendant
from gpulab.jupyter.sampling import attend_sampling
from gpulab.widgets import pump

class View:
    mode = "visible"
    def show(self, scene): pass
    def show_window(self, packed, age): pass
    def show_samples(self, packed, age): pass

shell = SimpleNamespace(); shell.events = EventManager(shell, available_events)
gpulab.acquire(memory="1GiB")
attend_sampling(Attendant(shell))
pump.SILENCE_SECONDS = 2.0
view, pumping, settings = View(), pump.Pump(), config.load()
pumping.attach(view)
while pumping.running: time.sleep(0.1)
print("idle", flush=True)
while sys.argv[1] == "watch":
    record.latest(settings)
    time.sleep(1.0)
signal.pause()
"""


def run() -> bool:
    """The sampler alone, then with the readers; both kinds of readers."""
    with tempfile.TemporaryDirectory() as folder:
        leases = Path(folder, "leases")
        leases.mkdir(mode=0o700)
        env = {**os.environ, "GPULAB_SIMULATE": _SCENARIO, "GPULAB_LEASE_DIR": str(leases)}
        env["GPULAB_DATA_DIR"] = folder
        settings = config.load(env)
        try:
            alone = _sampler_alone(env)
            kept = _idle(env, alone)
            _watching(env)
            return kept
        finally:
            pid = sampler.running_pid(settings)
            if pid is not None:
                os.kill(pid, signal.SIGTERM)
                _gone(pid)


def _sampler_alone(env: dict[str, str]) -> float:
    """What the sampler needs while one process holds a lease, in shares of a core."""
    with _Readers(env, 1, "idle") as reader:
        return reader.spend()[1]


def _idle(env: dict[str, str], alone: float) -> bool:
    with _Readers(env, _READERS, "idle") as readers:
        own, sampling = readers.spend()
    added = max(0.0, sampling - alone)
    kept = own + added < _LIMIT
    print(
        f"{'ok  ' if kept else 'OVER'}  readers: {_READERS} idle kernels (lease, unwatched monitor) need "
        f"{own:.2%} of a core, and {added:.2%} more in the sampler ({sampling:.2%}, alone {alone:.2%}); "
        f"limit {_LIMIT:.0%} together",
        flush=True,
    )
    return kept


def _watching(env: dict[str, str]) -> None:
    with _Readers(env, _READERS, "watch") as readers:
        own, sampling = readers.spend()
    print(
        f"      readers: {_READERS} that also read the record each second need {own:.2%} of a core in all, "
        f"{own / _READERS:.3%} each (the sampler {sampling:.2%})",
        flush=True,
    )


class _Readers:
    """Some processes, and the sampler that the first of them has started."""

    def __init__(self, env: dict[str, str], count: int, kind: str) -> None:
        self.settings = config.load(env)
        command = [sys.executable, "-c", _READER, kind]
        self.processes = [
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]

    def __enter__(self) -> _Readers:
        for process in self.processes:
            assert process.stdout is not None
            if process.stdout.readline() != "idle\n":
                raise RuntimeError("a reader ended")
        time.sleep(3)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def spend(self) -> tuple[float, float]:
        """Processor time of the readers and of the sampler, in shares of a core."""
        pid = sampler.running_pid(self.settings)
        if pid is None:
            raise RuntimeError("no sampler runs")
        pids = [process.pid for process in self.processes]
        before, began = (sum(map(_cpu, pids)), _cpu(pid)), time.monotonic()
        time.sleep(_SECONDS)
        took = time.monotonic() - began
        return (sum(map(_cpu, pids)) - before[0]) / took, (_cpu(pid) - before[1]) / took


def _cpu(pid: int) -> float:
    """Seconds of processor time of all its threads, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _gone(pid: int) -> None:
    """Until its files can be removed."""
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.05)
