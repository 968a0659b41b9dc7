"""Two commands, run in turn so that the machine's moods hit both."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Pair", "processes", "report"]


class Pair(NamedTuple):
    """Medians of both sides in seconds, and the ratio of the first to the second."""

    name: str
    ours: float
    theirs: float
    limit: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


def processes(
    name: str,
    ours: list[str],
    theirs: list[str],
    *,
    limit: float,
    repeats: int = 30,
    env: Mapping[str, str] | None = None,
) -> Pair:
    """CPU and wall time cannot both be trusted on a busy machine: the wall time's median is taken."""
    environment = {**os.environ, **(env or {})}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's Python keeps its bytecode

    def timed(command: list[str]) -> float:
        start = time.perf_counter()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start

    timed(ours), timed(theirs)
    samples = [(timed(ours), timed(theirs)) for _ in range(repeats)]
    return Pair(name, *(statistics.median(side) for side in zip(*samples, strict=True)), limit)


def report(pair: Pair) -> bool:
    """Print one line; say whether the limit holds."""
    kept = pair.ratio <= pair.limit
    times = f"{pair.ours * 1e3:.1f} ms against {pair.theirs * 1e3:.1f} ms"
    ratio = f"ratio {pair.ratio:.2f} (limit {pair.limit:.2f})"
    print(f"{'ok  ' if kept else 'OVER'}  {pair.name}: {times}, {ratio}", flush=True)
    return kept


PYTHON = sys.executable
