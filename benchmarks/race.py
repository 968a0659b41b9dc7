"""Sixteen `gpulab run --no-wait` at once on eight GPUs, round after round: always eight distinct GPUs."""

from __future__ import annotations

import os
import subprocess
import tempfile

from benchmarks.pairs import PYTHON

__all__ = ["run"]

_HOLD = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); input()"


def run(rounds: int = 20) -> bool:
    """Count the rounds in which 8 got distinct GPUs and 8 were refused with 75."""
    good = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        env = {**os.environ, "GPULAB_SIMULATE": "8xh100", "GPULAB_LEASE_DIR": folder}
        for _ in range(rounds):
            good += _round(env)
    kept = good == rounds
    print(f"{'ok  ' if kept else 'OVER'}  race: {good} of {rounds} rounds gave 8 distinct GPUs, 8 times 75")
    return kept


def _round(env: dict[str, str]) -> bool:
    command = [PYTHON, "-m", "gpulab", "run", "--no-wait", "--", PYTHON, "-c", _HOLD]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        for _ in range(16)
    ]
    given = [process.stdout.readline().strip() for process in started if process.stdout]
    for process in started:
        process.communicate("\n")
    codes = sorted(process.returncode for process in started)
    return len({uuid for uuid in given if uuid}) == 8 and codes == [0] * 8 + [75] * 8
