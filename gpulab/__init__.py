"""A GPU for every notebook, and proof that it pays.

The public names are loaded when they are used: importing gpulab costs nothing that a kernel or
`gpulab run` would feel.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own constant costs more than all of this module
if TYPE_CHECKING:
    from typing import Any

    from gpulab.allocation.session import Lease, acquire, current
    from gpulab.compare import compare
    from gpulab.hardware.observe import snapshot
    from gpulab.jupyter.extension import load_ipython_extension, unload_ipython_extension
    from gpulab.limits.limiting import limit_memory
    from gpulab.telemetry.history import history
    from gpulab.widgets.monitor import monitor

__version__ = "0.1.0"

__all__ = [
    "Lease",
    "__version__",
    "acquire",
    "compare",
    "current",
    "history",
    "limit_memory",
    "load_ipython_extension",
    "monitor",
    "snapshot",
    "unload_ipython_extension",
]

_HOME = {
    "Lease": "gpulab.allocation.session",
    "acquire": "gpulab.allocation.session",
    "compare": "gpulab.compare",
    "current": "gpulab.allocation.session",
    "history": "gpulab.telemetry.history",
    "limit_memory": "gpulab.limits.limiting",
    "load_ipython_extension": "gpulab.jupyter.extension",
    "monitor": "gpulab.widgets.monitor",
    "snapshot": "gpulab.hardware.observe",
    "unload_ipython_extension": "gpulab.jupyter.extension",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'gpulab' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
