"""A simulated machine in the place of NVIDIA's library, and a command that runs any Python program on it."""

from __future__ import annotations

import threading
from typing import Any

from gpulab.hardware.simulation.library import Library

__all__ = ["install", "uninstall"]

_lock = threading.Lock()


def install(text: str) -> None:
    """Put the machine that `text` names behind pynvml in this process. Raises ScenarioError."""
    import pynvml

    with _lock:
        if isinstance(pynvml.nvmlLib, Library) and pynvml.nvmlLib.text == text:
            return
        _put(pynvml, Library(text, lambda name: _is_symbol(pynvml, name)))


def uninstall() -> None:
    """Give pynvml back the machine's own library, which it loads when it needs it."""
    import pynvml

    with _lock:
        if isinstance(pynvml.nvmlLib, Library):
            _put(pynvml, None)


def _put(pynvml: Any, library: Library | None) -> None:
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml._nvmlLib_refcount = 0


def _is_symbol(pynvml: Any, name: str) -> bool:
    return name.startswith("nvml") and (hasattr(pynvml, name) or hasattr(pynvml, name.rpartition("_v")[0]))
