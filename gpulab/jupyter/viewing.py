"""What a viewer of the team dashboard may do: look. Everything else is refused by the server."""

from __future__ import annotations

from typing import Any

from jupyter_server.auth import Authorizer

__all__ = ["MESSAGES", "ViewOnly"]

MESSAGES = ["comm_close", "comm_info_request", "comm_msg", "comm_open", "kernel_info_request"]
"""Kernel messages that a widget needs; without execute_request no viewer can run code."""


class ViewOnly(Authorizer):
    """Reading is allowed, and talking to a kernel's widgets; starting, writing and stopping are not."""

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:  # noqa: ARG002
        """Called by the server for every request, after the token has been checked."""
        return action == "read" or (action == "execute" and resource == "kernels")
