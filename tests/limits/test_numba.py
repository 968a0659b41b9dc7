"""Numba's real module: its memory comes from RMM, whose limit then holds for it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        importlib.util.find_spec("numba") is None or importlib.util.find_spec("numba_cuda") is None,
        reason="numba-cuda is not installed; `make test-frameworks` runs this",
    ),
]

Answer = Callable[[str], dict[str, Any]]
LEASE = "limits.apply(8 * 2**30, 80 * 2**30)\n"
RMM = pytest.mark.skipif(importlib.util.find_spec("rmm") is None, reason="rmm is not installed")
SHOW = """
from numba.cuda.cudadrv import driver
answer["manager"] = driver._memory_manager and [base.__name__ for base in driver._memory_manager.__mro__]
answer["numba"], answer["rmm"] = state("numba"), state("rmm")
"""


@RMM
@pytest.mark.parametrize(
    "order",
    [
        [LEASE, "from numba import cuda\n"],
        ["from numba import cuda\n", LEASE],
        [LEASE, "import rmm.allocators.numba\n"],
    ],
    ids=["limit first", "import first", "through RMM's own module"],
)
def test_its_memory_comes_from_rmm_which_has_the_limit(answer_of: Answer, order: list[str]) -> None:
    answer = answer_of("".join(order) + SHOW)
    assert "RMMNumbaManager" in answer["manager"]
    assert (answer["numba"]["state"], answer["numba"]["by"]) == ("in force", "RMM")
    assert answer["rmm"]["state"] == "in force"
    assert answer["warned"] == []


@RMM
def test_get_memory_info_still_answers_as_numba_promises(answer_of: Answer) -> None:
    answer = answer_of(
        LEASE
        + """
from numba import cuda
import rmm.mr
from numba.cuda.cudadrv import driver
rmm.mr.available_device_memory = lambda: (3, 10)  # asks the driver, which this machine may lack
info = driver._memory_manager(context=None).get_memory_info()
answer["info"] = [info.free, info.total]
"""
    )
    assert answer["info"] == [3, 10]


def test_a_whole_gpu_leaves_its_memory_as_it_is(answer_of: Answer) -> None:
    answer = answer_of("limits.apply(None)\nfrom numba import cuda\n" + SHOW)
    assert answer["manager"] is None
    assert answer["numba"]["state"] == "growth only"


def test_a_users_own_memory_manager_is_kept(answer_of: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CUDA_MEMORY_MANAGER", "their.own")
    answer = answer_of(LEASE + "from numba import cuda\n" + SHOW)
    assert answer["manager"] is None
    assert answer["numba"]["state"] == "own limit"
