"""RMM's real module: the resource that it hands out, set without a driver, so without starting CUDA."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        importlib.util.find_spec("rmm") is None,
        reason="rmm is not installed; `make test-frameworks` runs this",
    ),
]

Answer = Callable[[str], dict[str, Any]]
POOL = 8 * 2**30 - 6 * 2**30 // 10
LEASE = "limits.apply(8 * 2**30, 80 * 2**30)\n"
SHOW = """
import rmm.mr
def shown(device=0):
    now = rmm.mr.get_per_device_resource(device)
    limit = now.get_allocation_limit() if hasattr(now, "get_allocation_limit") else None
    return [type(now).__name__, limit]
"""


@pytest.mark.parametrize("order", ["limit first", "import first"])
def test_a_limiting_resource_stands_before_anything_is_allocated(answer_of: Answer, order: str) -> None:
    code = [LEASE, SHOW]
    answer = answer_of(
        "".join(code if order == "limit first" else code[::-1])
        + "answer['shown'], answer['state'] = shown(), state('rmm')"
    )
    assert answer["shown"] == ["LimitingResourceAdaptor", POOL]
    assert answer["state"]["state"] == "in force"
    assert answer["state"]["in_force_bytes"] == answer["state"]["asked_bytes"] == POOL
    assert answer["warned"] == []


def test_every_device_of_the_mask_gets_one(answer_of: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    answer = answer_of(LEASE + SHOW + "answer['shown'] = [shown(0), shown(1), shown(2)]")
    assert [name for name, _ in answer["shown"]] == [
        "LimitingResourceAdaptor",
        "LimitingResourceAdaptor",
        "CudaMemoryResource",
    ]


def test_the_same_limit_again_keeps_the_resource_and_another_replaces_it(answer_of: Answer) -> None:
    answer = answer_of(
        LEASE
        + SHOW
        + """
first = rmm.mr.get_per_device_resource(0)
limits.apply(8 * 2**30, 80 * 2**30)
answer["same"] = rmm.mr.get_per_device_resource(0) is first
limits.apply(4 * 2**30, 80 * 2**30)
answer["smaller"] = shown()[1]
limits.apply(16 * 2**30, 80 * 2**30)
answer["larger"] = shown()[1]
answer["upstream"] = type(rmm.mr.get_per_device_resource(0).get_upstream()).__name__
limits.apply(None)
answer["lifted"] = shown()
"""
    )
    assert answer["same"] is True
    assert answer["smaller"] == 4 * 2**30 - 6 * 2**30 // 10
    assert answer["larger"] == 16 * 2**30 - 6 * 2**30 // 10
    assert answer["upstream"] == "CudaMemoryResource", "limits do not pile up on each other"
    assert answer["lifted"] == ["CudaMemoryResource", None]


def test_memory_that_was_given_before_counts_against_a_new_limit(answer_of: Answer) -> None:
    answer = answer_of(
        SHOW
        + """
given = []
def allocate(size, stream):
    given.append(size)
    return 4096 * len(given)
host = rmm.mr.CallbackMemoryResource(allocate, lambda pointer, size, stream: None)
from gpulab.limits.applying import FRAMEWORKS
from gpulab.limits.state import Cap, ask
framework = next(f for f in FRAMEWORKS if f.name == "rmm")
limits.apply(8 * 2**30, 80 * 2**30)
first = framework._limiting(0, host, 6 * 2**30)
rmm.mr.set_per_device_resource(0, first)
pointer = first.allocate(2 * 2**30)
limits.apply(5 * 2**30, 80 * 2**30)
answer["left"], answer["in_force"] = shown()[1], state("rmm")["in_force_bytes"]
"""
    )
    pool = 5 * 2**30 - 6 * 2**30 // 10
    assert answer["left"] == pool - 2 * 2**30
    assert answer["in_force"] == pool


def test_a_users_own_resource_is_kept(answer_of: Answer) -> None:
    answer = answer_of(
        SHOW
        + "own = rmm.mr.LimitingResourceAdaptor(rmm.mr.CudaMemoryResource(), 1000)\n"
        + "rmm.mr.set_per_device_resource(0, own)\n"
        + LEASE
        + "answer['shown'], answer['state'] = shown(), state('rmm')"
    )
    assert answer["shown"][1] == 1000
    assert answer["state"]["state"] == "own limit"
    assert answer["state"]["in_force_bytes"] is None


def test_managed_memory_that_is_in_use_already_is_said_to_be_too_late(answer_of: Answer) -> None:
    answer = answer_of(
        SHOW
        + "managed = rmm.mr.PrefetchResourceAdaptor(rmm.mr.ManagedMemoryResource())\n"
        + "rmm.mr.set_per_device_resource(0, managed)\n"
        + LEASE
        + "answer['state'] = state('rmm')"
    )
    assert answer["state"]["state"] == "too late"
    assert answer["warned"] == [answer["state"]["remedy"]]
    assert answer["state"]["remedy"].startswith("RMM (cuDF, cuML) already uses managed memory, so ")


def test_an_rmm_that_changed_is_said_once_and_its_import_succeeds(answer_of: Answer) -> None:
    answer = answer_of(
        SHOW + "del rmm.mr.LimitingResourceAdaptor\n" + LEASE + LEASE + "answer['state'] = state('rmm')"
    )
    assert answer["state"]["state"] == "failed"
    assert len(answer["warned"]) == 1
    assert "LimitingResourceAdaptor yourself" in answer["warned"][0]


ACCELERATOR = """
import importlib.machinery, types
class Accelerator:
    "Stands where cudf.pandas would (its wheels need gigabytes): asks what the real install asks of RMM."
    def find_spec(self, name, path=None, target=None):
        if name in ("cudf", "cudf.pandas"):
            return importlib.machinery.ModuleSpec(name, self, is_package=name == "cudf")
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        import cupy, rmm.mr
        if module.__name__ == "cudf.pandas":
            def install():
                now = rmm.mr.get_per_device_resource(0)
                if isinstance(now, rmm.mr.CudaMemoryResource):
                    rmm.mr.set_per_device_resource(0, rmm.mr.ManagedMemoryResource())
            module.install = install
sys.meta_path.append(Accelerator())
"""


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="cupy is not installed")
@pytest.mark.skipif(importlib.util.find_spec("cudf") is not None, reason="the real cudf is here")
def test_an_accelerator_finds_the_limit_and_so_does_not_switch_to_managed_memory(answer_of: Answer) -> None:
    answer = answer_of(
        ACCELERATOR
        + """
import cudf.pandas
cudf.pandas.install()
import rmm.mr
answer["without"] = type(rmm.mr.get_per_device_resource(0)).__name__
rmm.mr.set_per_device_resource(0, rmm.mr.CudaMemoryResource())
"""
        + LEASE
        + SHOW
        + "cudf.pandas.install()\nanswer['with'], answer['state'] = shown(), state('rmm')"
    )
    assert answer["without"] == "ManagedMemoryResource"
    assert answer["with"] == ["LimitingResourceAdaptor", POOL]
    assert answer["state"]["state"] == "in force"
    assert answer["warned"] == []


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="cupy is not installed")
@pytest.mark.skipif(importlib.util.find_spec("cudf") is not None, reason="the real cudf is here")
def test_where_an_accelerator_starts_cuda_the_drivers_pool_stands_under_the_limit(answer_of: Answer) -> None:
    answer = answer_of(
        ACCELERATOR
        + LEASE
        + """
import cudf.pandas
import rmm.mr
made = []
def pool():
    made.append(rmm.mr.CallbackMemoryResource(lambda size, stream: 4096, lambda pointer, size, stream: None))
    return made[-1]
rmm.mr.CudaAsyncMemoryResource = pool  # the two that ask the driver
rmm.mr.get_current_device_resource = lambda: rmm.mr.get_per_device_resource(0)
cudf.pandas.install()
cudf.pandas.install()
now = rmm.mr.get_per_device_resource(0)
answer["made"], answer["under"] = len(made), now.get_upstream() is made[0]
answer["limit"] = now.get_allocation_limit()
"""
    )
    assert (answer["made"], answer["under"], answer["limit"]) == (1, True, POOL)
