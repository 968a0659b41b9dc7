"""Results that lie in the host's memory prove that a GPU side did not run on the GPU."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from gpulab.compare.placement import not_on_device
from gpulab.compare.workload import Backend


class Empty:
    """An empty device array, as the CUDA array interface describes one."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {
        "shape": (0,),
        "typestr": "<i4",
        "data": (0, False),
        "version": 3,
    }


def test_a_numpy_array_is_named_with_its_type() -> None:
    reason = not_on_device({"labels": np.zeros(3)})
    assert reason == "the result 'labels' is a numpy.ndarray, which lies in the host's memory"


def test_one_result_in_the_hosts_memory_is_enough() -> None:
    assert "numpy.ndarray" in str(not_on_device({"core": Empty(), "labels": np.zeros(3)}))


def test_empty_results_and_none_at_all_prove_nothing() -> None:
    assert "no result whose place" in str(not_on_device({"core": Empty()}))
    assert "no result whose place" in str(not_on_device({}))


def test_the_cpu_side_has_nothing_to_prove() -> None:
    assert Backend().placement({"labels": np.zeros(3)}) is None
