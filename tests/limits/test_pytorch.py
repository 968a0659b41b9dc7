"""PyTorch's real module: what it is called with when CUDA starts, and that nothing starts CUDA before.

Where torch is a CPU build, its own start-up code runs, with the two functions of the driver's half that
such a build lacks; the limit is read from calls of the real, wrapped functions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="torch is not installed; `make test-frameworks` runs this",
    ),
    pytest.mark.usefixtures("one_h100"),
]

CUDA = """
import inspect, types
import torch
calls = []
real = torch.cuda.set_per_process_memory_fraction
fractions = {}

def recorded(*args, **kwargs):
    bound = inspect.signature(real).bind(*args, **kwargs)  # a changed signature fails here
    calls.append([bound.arguments["fraction"], bound.arguments["device"]])
    fractions[bound.arguments["device"]] = bound.arguments["fraction"]

def with_two_gpus():
    "The driver's half, which a CPU build lacks: two devices of 80 GiB; the rest is torch's own."
    torch.backends.cuda.is_built = lambda: True
    torch._C._cuda_getDeviceCount = torch.cuda.device_count = lambda: 2
    torch._C._cuda_init = lambda: None
    torch.cuda._cudart = types.SimpleNamespace()
    torch.cuda.get_allocator_backend = lambda: "native"
    torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(total_memory=80 * 2**30)
    torch.cuda.set_per_process_memory_fraction = recorded
    torch.cuda.get_per_process_memory_fraction = lambda device: fractions.get(device, 1.0)
"""
POOL = "(8 * 2**30 - 6 * 2**30 // 10)"
Answer = Callable[[str], dict[str, Any]]


def test_the_limit_waits_for_cuda_and_is_set_for_every_device_when_torch_starts_it(answer_of: Answer) -> None:
    answer = answer_of(
        CUDA
        + f"""
with_two_gpus()
gpulab.limit_memory("8GiB")
answer["before"] = [list(calls), torch.cuda.is_initialized(), state("torch")]
torch.cuda.init()
answer["calls"], answer["wanted"] = calls, {POOL} / (80 * 2**30)
answer["after"] = state("torch")
"""
    )
    calls, started, before = answer["before"]
    assert (calls, started, before["state"]) == ([], False, "when CUDA starts")
    assert answer["calls"] == [[pytest.approx(answer["wanted"]), device] for device in (0, 1)]
    assert answer["after"]["state"] == "in force"
    assert answer["after"]["in_force_bytes"] == pytest.approx(answer["after"]["asked_bytes"], abs=1)
    assert answer["warned"] == []


def test_a_later_import_is_followed_and_the_newest_limit_counts(answer_of: Answer) -> None:
    answer = answer_of(
        """
gpulab.limit_memory("8GiB")
"""
        + CUDA
        + f"""
answer["at_import"] = state("torch")["state"]
with_two_gpus()
gpulab.limit_memory("6GiB")
gpulab.limit_memory("8GiB")
torch.cuda.init()
answer["first"] = len(calls), calls[0][0] / ({POOL} / (80 * 2**30))
gpulab.limit_memory("16GiB")
answer["larger"] = calls[-1][0] * 80 * 2**30
limits.apply(None)
answer["lifted"] = calls[-1][0]
"""
    )
    assert answer["at_import"] in ("when CUDA starts", "not capped")
    assert answer["first"] == [2, pytest.approx(1.0)]
    assert answer["larger"] == pytest.approx(15.4 * 2**30)
    assert answer["lifted"] == 1.0


def test_a_users_own_fraction_is_kept_by_a_lease_and_replaced_by_their_own_call(answer_of: Answer) -> None:
    answer = answer_of(
        CUDA
        + """
with_two_gpus()
torch.cuda.init()
torch.cuda.set_per_process_memory_fraction(0.25, 0)
calls.clear()
limits.apply(8 * 2**30, 80 * 2**30)
answer["lease"] = [device for _, device in calls]
gpulab.limit_memory("8GiB")
answer["call"] = sorted({device for _, device in calls})
"""
    )
    assert answer["lease"] == [1]
    assert answer["call"] == [0, 1]


def test_a_users_allocator_variable_is_left_alone(answer_of: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "per_process_memory_fraction:0.5")
    answer = answer_of(
        CUDA + "with_two_gpus(); gpulab.limit_memory('8GiB'); answer['state'] = state('torch')"
    )
    assert answer["state"]["state"] == "own limit"


def test_a_torch_that_changed_is_said_once_and_goes_on(answer_of: Answer) -> None:
    answer = answer_of(
        CUDA
        + """
with_two_gpus()
del torch.cuda._lazy_call
limits.apply(8 * 2**30, 80 * 2**30)
limits.apply(8 * 2**30, 80 * 2**30)
answer["state"], answer["sum"] = state("torch"), float(torch.ones(3).sum())
"""
    )
    assert answer["state"]["state"] == "failed"
    assert answer["sum"] == 3.0
    (sentence,) = answer["warned"]
    assert sentence.startswith("PyTorch ")
    assert "could not be limited (AttributeError" in sentence
    assert "set_per_process_memory_fraction yourself" in sentence


def test_an_error_when_cuda_starts_does_not_stop_torch(answer_of: Answer) -> None:
    answer = answer_of(
        CUDA
        + """
with_two_gpus()
gpulab.limit_memory("8GiB")
def broken(device):
    raise RuntimeError("no such call")
torch.cuda.get_device_properties = broken
torch.cuda.init()
answer["started"], answer["state"] = torch.cuda.is_initialized(), state("torch")["state"]
"""
    )
    assert answer["started"] is True
    assert answer["state"] == "failed"


def test_a_torch_without_cuda_has_nothing_to_cap(answer_of: Answer) -> None:
    answer = answer_of(
        """
gpulab.limit_memory("8GiB")
import torch
answer["state"], answer["cuda"] = state("torch"), torch.backends.cuda.is_built()
"""
    )
    assert answer["state"]["state"] == ("when CUDA starts" if answer["cuda"] else "not capped")
    assert answer["warned"] == []
