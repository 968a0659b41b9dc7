"""CuPy's real module: the limit that its own code reads for a new pool, and the calls once CUDA runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        importlib.util.find_spec("cupy") is None,
        reason="cupy is not installed; `make test-frameworks` runs this",
    ),
]

Answer = Callable[[str], dict[str, Any]]
POOL = 8 * 2**30 - 6 * 2**30 // 10
LEASE = "limits.apply(8 * 2**30, 80 * 2**30)\n"
READ = "from cupy.cuda.memory import _parse_limit_string\n"


def test_a_new_pool_reads_the_limit_also_where_cupy_was_imported_before(answer_of: Answer) -> None:
    answer = answer_of(
        "import cupy\n"
        + LEASE
        + READ
        + "answer['size'], answer['state'] = _parse_limit_string(), state('cupy')"
    )
    assert answer["size"]["size"] == POOL
    assert answer["state"]["state"] == "when CUDA starts"
    assert answer["warned"] == []


def test_a_users_own_limit_is_kept(answer_of: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "12345")
    answer = answer_of(
        LEASE
        + "import cupy\n"
        + READ
        + "answer['size'], answer['state'] = _parse_limit_string(), state('cupy')"
    )
    assert answer["size"]["size"] == 12345
    assert answer["state"]["state"] == "own limit"


def test_once_cuda_runs_the_pool_of_every_device_is_limited_by_its_public_call(answer_of: Answer) -> None:
    answer = answer_of(
        LEASE
        + """
import contextlib, cupy
calls, current = [], []

class Pool(type(cupy.get_default_memory_pool())):
    "CuPy's own pool; its call is noted where the device would be asked."
    def set_limit(self, size=None, fraction=None):
        calls.append([current[-1], size, fraction])

pool = Pool()
cupy.get_default_memory_pool = lambda: pool
cupy.cuda.runtime.getDeviceCount = lambda: 2
cupy.cuda.Device = lambda device: contextlib.nullcontext(current.append(device))
from gpulab.limits.cupy import CuPy
CuPy().limit_each(7 * 2**30)
answer["calls"] = calls
"""
    )
    assert answer["calls"] == [[0, 7 * 2**30, None], [1, 7 * 2**30, None]]


@pytest.mark.skipif(importlib.util.find_spec("rmm") is None, reason="rmm is not installed")
def test_under_cudfs_allocator_it_follows_rmm(answer_of: Answer) -> None:
    answer = answer_of(
        LEASE
        + """
import cupy
from rmm.allocators.cupy import rmm_cupy_allocator
cupy.cuda.set_allocator(rmm_cupy_allocator)
limits.apply(8 * 2**30, 80 * 2**30)
answer["cupy"], answer["rmm"] = state("cupy"), state("rmm")
"""
    )
    assert (answer["cupy"]["state"], answer["cupy"]["by"]) == ("in force", "RMM")
    assert answer["rmm"]["in_force_bytes"] == POOL
