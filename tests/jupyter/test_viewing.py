"""What a viewer of the dashboard may do."""

from __future__ import annotations

import pytest

from gpulab.jupyter.viewing import MESSAGES, ViewOnly


@pytest.mark.parametrize(
    ("action", "resource", "allowed"),
    [
        ("read", "contents", True),
        ("read", "kernels", True),
        ("execute", "kernels", True),
        ("write", "kernels", False),
        ("write", "contents", False),
        ("write", "sessions", False),
        ("execute", "terminals", False),
        ("write", "server", False),
    ],
)
def test_looking_is_allowed_and_changing_is_not(action: str, resource: str, allowed: bool) -> None:
    assert ViewOnly().is_authorized(None, None, action, resource) is allowed


def test_no_message_that_runs_code_or_stops_a_kernel_is_let_through() -> None:
    assert not {
        m for m in MESSAGES if m.startswith(("execute", "shutdown", "debug", "interrupt", "complete"))
    }
