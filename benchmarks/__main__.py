"""Run every benchmark; exit 1 if a limit is broken. `python -m benchmarks startup race` runs some."""

from __future__ import annotations

import importlib
import sys

ALL = (
    "startup", "race", "queue", "acquire", "stress", "hang", "kernel_start", "history", "sampler", "readers",
)  # fmt: skip

if __name__ == "__main__":
    chosen = sys.argv[1:] or ALL
    kept = [importlib.import_module(f"benchmarks.{name}").run() for name in chosen]
    raise SystemExit(0 if all(kept) else 1)
