"""The table of simulated NVML calls, and how their C arguments are read and written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpulab.hardware.simulation.target import Target, is_pointer

__all__ = [
    "BAD_ARGUMENT",
    "CALLS",
    "LOST",
    "NOT_FOUND",
    "NOT_SUPPORTED",
    "OK",
    "TOO_SMALL",
    "WRONG_VERSION",
    "call",
    "device_call",
    "out",
    "write",
]

OK, BAD_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, TOO_SMALL, LOST, WRONG_VERSION = 0, 2, 3, 6, 7, 15, 25
"""NVML's return codes."""

Call = Callable[..., int]
CALLS: dict[str, Call] = {}
"""Name -> function of the target and the C arguments; filled by calls.py and values.py."""


def out(reference: Any) -> Any:
    """The object behind byref(x), pointer(x), or an array itself."""
    if hasattr(reference, "_obj"):
        return reference._obj
    return reference.contents if is_pointer(reference) else reference


def call(*names: str) -> Callable[[Call], Call]:
    """Register a call; the function gets the target before the C arguments."""

    def register(function: Call) -> Call:
        CALLS.update(dict.fromkeys(names, function))
        return function

    return register


def device_call(*names: str) -> Callable[[Call], Call]:
    """Register a call whose first argument is a handle; the function gets the target in its place."""

    def register(function: Call) -> Call:
        def checked(target: Target, handle: Any, *arguments: Any) -> int:
            if target.gpu is None:  # a null handle, or a GPU that has left the machine
                return LOST if is_pointer(handle) and handle else BAD_ARGUMENT
            if not target.is_there:
                return BAD_ARGUMENT
            return function(target, *arguments)

        CALLS.update(dict.fromkeys(names, checked))
        return function

    return register


def write(buffer: Any, length: Any, value: str) -> int:
    """A text into a C buffer."""
    data = value.encode()
    if len(data) >= getattr(length, "value", length):
        return TOO_SMALL
    buffer.value = data
    return OK
