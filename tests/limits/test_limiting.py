"""limit_memory and a lease's share: what is asked, what is refused, and with which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gpulab
from gpulab import config
from gpulab.errors import RequestError
from gpulab.limits import asked

Answer = Callable[[str], dict[str, Any]]
GIB = 2**30


@pytest.mark.usefixtures("one_h100")
@pytest.mark.parametrize(
    ("size", "sentence"),
    [
        ("80%", "'80%' is not a size; write for example 8GiB"),
        ("0", "must be positive"),
        (0, "must be positive"),
        ("-1", "'-1' is not a size"),
        ("1e30", "'1e30' is more memory than any machine has"),
        ("100GiB", "100.0 GiB is more than the 79.6 GiB that the GPU has; ask for less"),
        ("600MiB", "leaves nothing for memory pools beside CUDA's context"),
        ("eight", "'eight' is not a size"),
    ],
)
def test_a_size_that_cannot_be_meant_is_refused_with_what_to_write(size: int | str, sentence: str) -> None:
    before = asked()
    with pytest.raises(RequestError, match=sentence):
        gpulab.limit_memory(size)
    assert asked() is before, "nothing has changed"
    assert "CUPY_GPU_MEMORY_LIMIT" not in config.inherited()


def test_without_a_size_and_without_a_share_it_says_that_there_is_none() -> None:
    with pytest.raises(RequestError, match=r'no share of a GPU to take the limit from; .*"8GiB"'):
        gpulab.limit_memory()


@pytest.mark.usefixtures("one_h100")
def test_more_than_the_lease_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULAB_MEMORY_LIMIT", str(8 * GIB))
    with pytest.raises(RequestError, match=r"9\.0 GiB is more than the 8\.0 GiB of this process's lease"):
        gpulab.limit_memory("9GiB")


@pytest.mark.usefixtures("one_h100")
def test_without_a_size_the_share_of_the_lease_is_the_limit(
    answer_of: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULAB_MEMORY_LIMIT", str(8 * GIB))
    answer = answer_of("gpulab.limit_memory(); answer['cap'] = limits.asked()._asdict()")
    assert answer["cap"]["memory_bytes"] == 8 * GIB
    assert answer["warned"] == []


@pytest.mark.usefixtures("one_h100")
def test_the_last_call_holds_and_the_same_call_twice_changes_nothing(answer_of: Answer) -> None:
    answer = answer_of(
        """
for size in ("8GiB", "8GiB", "4GiB", "6GiB"):
    gpulab.limit_memory(size)
    answer.setdefault("cupy", []).append(os.environ["CUPY_GPU_MEMORY_LIMIT"])
    answer.setdefault("jax", []).append(float(os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"]))
"""
    )
    assert answer["cupy"][0] == answer["cupy"][1] > answer["cupy"][3] > answer["cupy"][2]
    assert answer["jax"][0] == answer["jax"][1] > answer["jax"][3] > answer["jax"][2]


def test_a_whole_gpu_grows_without_a_cap_and_lifts_an_earlier_one(answer_of: Answer) -> None:
    answer = answer_of(
        """
limits.apply(8 * 2**30, 80 * 2**30)
limits.apply(None)
answer["variables"] = sorted(name for name in os.environ if name.startswith(("XLA_", "CUPY_", "TF_FORCE")))
"""
    )
    assert answer["variables"] == ["TF_FORCE_GPU_ALLOW_GROWTH", "XLA_PYTHON_CLIENT_PREALLOCATE"]


def test_a_share_that_cuda_alone_fills_is_applied_and_said(answer_of: Answer) -> None:
    answer = answer_of("limits.apply(512 * 2**20); answer['pool'] = limits.asked().pool_bytes")
    assert answer["pool"] == 64 * 2**20
    (sentence,) = answer["warned"]
    assert sentence == (
        "The share of 512.0 MiB leaves no memory for pools beside CUDA's context (about 614.4 MiB), so pools "
        "are capped at 64.0 MiB and this process will be over its share; take a larger one."
    )


def test_a_lease_for_a_command_costs_no_import_of_the_hooks(answer_of: Answer) -> None:
    answer = answer_of(
        """
limits.variables(8 * 2**30, 80 * 2**30)
answer["loaded"] = sorted({"wrapt", "gpulab.limits.applying", "gpulab.hardware.observe"} & set(sys.modules))
limits.apply(8 * 2**30, 80 * 2**30)
answer["then"] = "wrapt" in sys.modules
"""
    )
    assert answer["loaded"] == []
    assert answer["then"] is True
