"""Memory pools capped in every framework, from one number; cooperative, and per framework and process.

The public names are loaded when they are used: `gpulab run` needs only the variables.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own constant costs more than all of this module
if TYPE_CHECKING:
    from typing import Any

    from gpulab.limits.environment import variables, without_limits
    from gpulab.limits.limiting import apply, limit_memory
    from gpulab.limits.pools import pool_bytes
    from gpulab.limits.reporting import FrameworkState, dbscan_batch_mbytes, excess, process_bytes, report
    from gpulab.limits.state import asked

__all__ = [
    "FrameworkState",
    "apply",
    "asked",
    "dbscan_batch_mbytes",
    "excess",
    "limit_memory",
    "pool_bytes",
    "process_bytes",
    "report",
    "variables",
    "without_limits",
]

_HOME = {
    "FrameworkState": "reporting",
    "apply": "limiting",
    "asked": "state",
    "dbscan_batch_mbytes": "reporting",
    "excess": "reporting",
    "limit_memory": "limiting",
    "pool_bytes": "pools",
    "process_bytes": "reporting",
    "report": "reporting",
    "variables": "environment",
    "without_limits": "environment",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'gpulab.limits' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"gpulab.limits.{home}"), name)
