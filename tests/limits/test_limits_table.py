"""What `%gpu limits` shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.usefixtures("one_h100")
def test_the_table_says_what_is_asked_by_whom_and_what_the_driver_counts(
    answer_of: Callable[[str], dict[str, Any]],
) -> None:
    answer = answer_of(
        """
from gpulab.jupyter.limits_table import limits_overview
answer["before"] = repr(limits_overview())
gpulab.limit_memory("8GiB")
answer["text"], answer["html"] = repr(limits_overview()), limits_overview()._repr_html_()
limits.apply(None)
answer["whole"] = repr(limits_overview())
"""
    )
    assert "No memory limit is asked in this process; gpulab.limit_memory sets one." in answer["before"]
    asked = "8.0 GiB are asked by gpulab.limit_memory: 7.4 GiB for each framework's pool"
    assert asked in answer["text"]
    assert "By the driver's (NVML's) own count this process uses 0 B." in answer["text"]
    assert asked.replace("'", "&#x27;") in answer["html"]
    assert "<script" not in answer["html"]
    assert "Memory grows on demand, without a limit" in answer["whole"]
