"""Results that lie in the host's memory prove that a GPU side did not run on the GPU."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpulab.compare.backend import Backend, CupyBackend
from gpulab.compare.placement import not_on_device

HOST, DEVICE, MANAGED = 1, 2, 3
"""cudaMemoryType, as the CUDA runtime numbers it."""


class LooksLikeADeviceArray:
    """What CuPy, cuDF and Numba show of an array: the CUDA array interface. It holds no data."""

    def __init__(self, address: int, shape: tuple[int, ...] = (3,)) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": shape,
            "typestr": "<i4",
            "data": (address, False),
            "version": 3,
        }


EMPTY = LooksLikeADeviceArray(0, (0,))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The kind of memory at each address, told as the CUDA runtime tells it through CuPy.

    A stand-in for the library, which needs a driver; the last test asks the real one where it is.
    """
    kinds: dict[int, int] = {}

    def attributes(address: int) -> SimpleNamespace:
        return SimpleNamespace(device=0, type=kinds[address])

    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(runtime=SimpleNamespace(pointerGetAttributes=attributes))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return kinds


def test_a_numpy_array_is_named_with_its_type() -> None:
    reason = not_on_device({"labels": np.zeros(3)})
    assert reason == "the result 'labels' is a numpy.ndarray, which lies in the host's memory"


def test_one_result_in_the_hosts_memory_is_enough() -> None:
    assert "numpy.ndarray" in str(not_on_device({"core": EMPTY, "labels": np.zeros(3)}))


def test_empty_results_and_none_at_all_prove_nothing() -> None:
    assert "no result whose place" in str(not_on_device({"core": EMPTY}))
    assert "no result whose place" in str(not_on_device({}))


def test_the_cpu_side_has_nothing_to_prove() -> None:
    assert Backend().placement(None, {}, {"labels": np.zeros(3)}) is None


@pytest.mark.parametrize("kind", [DEVICE, MANAGED])
def test_results_that_the_driver_finds_in_a_gpus_memory_are_proved(memory: dict[int, int], kind: int) -> None:
    memory.update({0x7F00: kind, 0x7F80: DEVICE})
    outputs = {
        "labels": LooksLikeADeviceArray(0x7F00),
        "core": LooksLikeADeviceArray(0x7F80),
        "none": EMPTY,
    }
    assert not_on_device(outputs) is None
    assert CupyBackend().placement(None, {}, outputs) is None


def test_an_array_that_only_looks_like_one_of_a_gpu_is_found_out_by_the_driver(
    memory: dict[int, int],
) -> None:
    memory.update({0x7F00: DEVICE, 0x1000: HOST, 0x2000: 0})
    for address in (0x1000, 0x2000):
        outputs = {"labels": LooksLikeADeviceArray(0x7F00), "core": LooksLikeADeviceArray(address)}
        reason = not_on_device(outputs)
        assert reason == "the driver says that the result 'core' does not lie in a GPU's memory"


def test_a_real_array_of_cupy_is_proved() -> None:
    cupy = pytest.importorskip("cupy")
    try:
        array = cupy.arange(3)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"there is no GPU here ({error})")
    assert not_on_device({"labels": array}) is None
