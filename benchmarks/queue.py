"""64 `gpulab run` in the queue of 8 GPUs: their order, how soon each starts, and what waiting costs."""

from __future__ import annotations

import os
import random
import select
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.pairs import PYTHON

__all__ = ["run"]

_WAITERS = 64
_PRIORITIES = {"high": 0, "normal": 1, "low": 2}
_START_SECONDS = 0.150
_CPU_SHARE = 0.01
_HOLD = "date +%s.%N; read line"


class _Job(NamedTuple):
    """A `gpulab run`, first waiting and then holding; its place when it came."""

    process: subprocess.Popen[str]
    priority: str
    number: int

    def started(self) -> float:
        """When its command began, in seconds since the epoch; waits for that."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a waiter ended: {self.process.stderr.read()}")
        return float(line)

    def end(self) -> float:
        """Let it go; when that was asked."""
        now = time.time()
        assert self.process.stdin is not None
        self.process.stdin.close()
        return now

    def cpu(self) -> float:
        """Seconds of processor time that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run() -> bool:
    """Fill the machine, line up the waiters, and let the holders go one by one."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        env = {**os.environ, "GPULAB_SIMULATE": "8xh100", "GPULAB_LEASE_DIR": folder}
        jobs: list[_Job] = []
        try:
            holders = [_begin(env, jobs, "normal") for _ in range(8)]
            for holder in holders:
                holder.started()
            priorities = ["high"] * 8 + ["low"] * 8 + ["normal"] * (_WAITERS - 16)
            random.Random(3).shuffle(priorities)
            waiters = [_line_up(env, jobs, priority) for priority in priorities]
            return _serve(holders, waiters)
        finally:
            for job in jobs:
                job.process.kill()
                job.process.wait()


def _begin(env: dict[str, str], jobs: list[_Job], priority: str) -> _Job:
    command = [PYTHON, "-m", "gpulab", "run", "--priority", priority, "--", "sh", "-c", _HOLD]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    jobs.append(_Job(process, priority, len(jobs)))
    return jobs[-1]


def _line_up(env: dict[str, str], jobs: list[_Job], priority: str) -> _Job:
    """One after another, so that we know who came first."""
    job = _begin(env, jobs, priority)
    assert job.process.stderr is not None
    job.process.stderr.readline()  # that it waits
    return job


def _serve(holders: list[_Job], waiters: list[_Job]) -> bool:
    time.sleep(3)  # until the last one's start is over
    expected = sorted(waiters, key=lambda job: (_PRIORITIES[job.priority], job.number))
    began, spent = time.monotonic(), {job.number: job.cpu() for job in waiters}
    shares: list[float] = []
    delays, served, dice = [], [], random.Random(5)
    for count in range(len(waiters)):
        released = holders.pop(dice.randrange(len(holders))).end()
        job, started = _next_start(waiters)
        delays.append(started - released)
        served.append(job)
        waiters.remove(job)
        holders.append(job)
        time.sleep(dice.uniform(0.2, 0.8))
        if count == _WAITERS // 2 - 1:
            took = time.monotonic() - began
            shares = [(job.cpu() - spent[job.number]) / took for job in waiters]
    wrong = [(a.number, b.number) for a, b in zip(served, expected, strict=True) if a is not b]
    return _report(delays, shares, wrong)


def _next_start(waiters: list[_Job]) -> tuple[_Job, float]:
    ready, _, _ = select.select([job.process.stdout for job in waiters], [], [], 30)
    job = next(job for job in waiters if job.process.stdout in ready)
    return job, job.started()


def _report(delays: list[float], shares: list[float], wrong: list[tuple[int, int]]) -> bool:
    median, worst = statistics.median(delays), max(delays)
    cost, most = statistics.median(shares), max(shares)
    kept = not wrong and median <= _START_SECONDS and most < _CPU_SHARE
    print(
        f"{'ok  ' if kept else 'OVER'}  queue: {_WAITERS} waiters on 8 GPUs, "
        f"{f'OUT OF ORDER {wrong}' if wrong else 'all in order'}; from release to the next start "
        f"{median * 1e3:.0f} ms in the median, {worst * 1e3:.0f} ms at worst (limit 150); "
        f"a waiter costs {cost:.2%} of a core in the median, {most:.2%} at worst (limit {_CPU_SHARE:.0%})",
        flush=True,
    )
    return kept
