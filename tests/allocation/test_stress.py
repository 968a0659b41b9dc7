"""Many processes, several accounts, shares and whole GPUs, queues and kill -9: no GPU is given out twice."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_gpu_is_given_out_twice_and_nothing_is_left_behind() -> None:
    command = [sys.executable, "-m", "benchmarks.stress", "16"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    counts = {name: int(number) for number, name in re.findall(r"(\d+) (\w+)(?=,|$)", result.stdout.strip())}
    assert counts["granted"] > 50
    assert counts["queued"] > 10
    assert counts["killed"] > 10
    assert counts["violation"] == 0


def test_the_checker_of_the_stress_sees_a_gpu_that_is_given_out_twice() -> None:
    """Without the locks' answers every GPU looks free: then there must be violations."""
    blind = (
        "from benchmarks import stress\n"
        "from gpulab.allocation import grants\n"
        "grants._tidied = lambda *_: ()\n"
        "stress.run(2, 12)\n"
    )
    command = [sys.executable, "-c", blind]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    (violations,) = re.findall(r"(\d+) violation", result.stdout)
    assert int(violations) > 0
    assert result.stdout.startswith("OVER")
