"""Frameworks that cannot be capped from outside say so, with what to do."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.frameworks
Answer = Callable[[str], dict[str, Any]]


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(name) is None,
        reason=f"{name} is not installed; `make test-frameworks` runs this",
    )


@needs("onnxruntime")
def test_onnx_runtime_is_not_capped_and_the_options_to_give_are_named(answer_of: Answer) -> None:
    answer = answer_of(
        "limits.apply(8 * 2**30, 80 * 2**30)\nimport onnxruntime\nanswer['state'] = state('onnxruntime')"
    )
    assert answer["state"]["state"] == "not capped"
    assert answer["state"]["asked_bytes"] is None
    assert f"'gpu_mem_limit': {8 * 2**30 - 6 * 2**30 // 10}" in answer["state"]["remedy"]
    assert answer["warned"] == []


@needs("xgboost")
def test_xgboost_is_not_capped_and_told_by_its_own_build_what_helps(answer_of: Answer) -> None:
    answer = answer_of(
        "limits.apply(8 * 2**30, 80 * 2**30)\nimport xgboost\n"
        "answer['state'], answer['rmm'] = state('xgboost'), bool(xgboost.build_info().get('USE_RMM'))"
    )
    assert answer["state"]["state"] == "not capped"
    assert ("use_rmm=True" in answer["state"]["remedy"]) is answer["rmm"]
