"""Proof that the GPU side ran on the GPU; without it there is no speedup.

An import that succeeds proves nothing, and several libraries fall back to the CPU without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["not_on_device"]

_DEVICE, _MANAGED = 2, 3


def not_on_device(outputs: Mapping[str, Any]) -> str | None:
    """Why these outputs are not proved to lie in a GPU's memory; None if all of them do.

    Shapes do not matter; an empty array has no address, so it proves nothing and is passed over, but
    one output at least must have one.
    """
    proved = False
    for name, value in outputs.items():
        interface = getattr(value, "__cuda_array_interface__", None)
        if interface is None:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            return f"the result {name!r} is a {kind}, which lies in the host's memory"
        address = interface["data"][0]
        if not address:
            continue
        where = _memory_type(address)
        if where not in (_DEVICE, _MANAGED):
            return f"the driver says that the result {name!r} does not lie in a GPU's memory"
        proved = True
    return None if proved else "there is no result whose place could be asked for"


def _memory_type(address: int) -> int:
    import cupy

    return int(cupy.cuda.runtime.pointerGetAttributes(address).type)
