"""Processes of their own: a framework is imported once per process, and limits are of a process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FRAMEWORK_VARIABLES = (
    "CUPY_GPU_MEMORY_LIMIT",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
)
PROLOGUE = """
import json, os, sys, warnings
warned = []
warnings.showwarning = lambda message, *_: warned.append(str(message))
warnings.filterwarnings("always", category=RuntimeWarning, module="gpulab")
import gpulab
from gpulab import limits

def state(name):
    return next(s for s in limits.report() if s.name == name)._asdict()

answer = {}
"""
EPILOGUE = """
answer["warned"] = warned
print("\\n" + json.dumps(answer))
"""


@pytest.fixture(autouse=True)
def _no_frameworks_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FRAMEWORK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def one_h100(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated GPU of 79.6 GiB, labelled as such."""
    monkeypatch.setenv("GPULAB_SIMULATE", "1xh100")


@pytest.fixture
def answer_of() -> Callable[[str], dict[str, Any]]:
    """Run code in a new process; it fills `answer`, which comes back with the warnings it was given."""

    def run(code: str) -> dict[str, Any]:
        result = subprocess.run(
            [sys.executable, "-c", PROLOGUE + code + EPILOGUE],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        assert result.returncode == 0, result.stderr
        found: dict[str, Any] = json.loads(result.stdout.rpartition("\n{")[2].join(["{", ""]))
        return found

    return run
