"""The Jupyter server extension. Whatever fails here is logged, and JupyterLab starts all the same."""

from __future__ import annotations

from typing import Any

__all__: list[str] = []


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    """What jupyter_server asks of the module that jupyter_server_config.d/gpulab.json names."""
    return [{"module": "gpulab.jupyter.server"}]


def _load_jupyter_server_extension(serverapp: Any) -> None:
    try:
        from gpulab.jupyter.routes import add_routes, offers_metrics
        from gpulab.jupyter.watcher import Watcher

        add_routes(serverapp.web_app, metrics=offers_metrics(serverapp.config))
        watcher = Watcher(serverapp.kernel_manager, serverapp.session_manager, serverapp.log)
        watcher.start(serverapp.io_loop)
    except Exception:  # the server is not ours, and kernels get their GPUs without it
        serverapp.log.warning("gpulab: the server extension was not loaded", exc_info=True)
    else:
        serverapp.log.debug("gpulab: status at %sgpulab/api/status", serverapp.base_url)
