"""All frameworks at once: a hook on the import of each, and a call to those that are imported already."""

from __future__ import annotations

import os
import threading

from gpulab.limits import environment, state
from gpulab.limits.cupy import CuPy
from gpulab.limits.framework import Framework
from gpulab.limits.jax import Jax
from gpulab.limits.numba import Numba
from gpulab.limits.pytorch import PyTorch
from gpulab.limits.rmm import Rmm
from gpulab.limits.state import Cap
from gpulab.limits.tensorflow import TensorFlow
from gpulab.limits.uncapped import OnnxRuntime, XgBoost

__all__ = ["FRAMEWORKS", "put_in_force"]

FRAMEWORKS: tuple[Framework, ...] = (
    PyTorch(),
    TensorFlow(),
    Jax(),
    CuPy(),
    Rmm(),
    Numba(),
    OnnxRuntime(),
    XgBoost(),
)

_turn = threading.RLock()
_hooked = False


def put_in_force(cap: Cap) -> None:
    """Ask for `cap`: in this process's environment, and in every framework, now and later imported."""
    global _hooked  # noqa: PLW0603 - hooks of a process are set once
    with _turn:
        state.ask(cap)
        environment.exchange(cap.memory_bytes, cap.total_bytes)
        if _hooked:
            _tell_imported()
        else:
            _hooked = True
            _hook()


def _tell_imported() -> None:
    for framework in FRAMEWORKS:
        if framework.loaded is not None:
            framework.follow()


def _hook() -> None:
    """A hook on a module that is imported already is called at once."""
    import wrapt

    for framework in FRAMEWORKS:
        for module in (framework.module, *framework.also):
            wrapt.register_post_import_hook(framework.imported, module)


def _renew_turn() -> None:
    """A forked child may have been made while another thread had the turn."""
    global _turn  # noqa: PLW0603
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_turn)
