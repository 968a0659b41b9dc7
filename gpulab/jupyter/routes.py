"""What the Jupyter server answers for gpulab: `GET /gpulab/api/status`, as `gpulab status --json`."""

from __future__ import annotations

import json
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado.web import Application, HTTPError, authenticated

from gpulab import config
from gpulab.allocation import leases
from gpulab.allocation.status import status
from gpulab.errors import GpulabError
from gpulab.hardware.observe import observe
from gpulab.jupyter.threads import in_thread

__all__ = ["add_routes"]


class _Status(APIHandler):
    """The machine and its leases, for whoever may use this server."""

    auth_resource = "gpulab"
    _track_activity = False  # a page that polls must not keep an idle server from being culled

    @authenticated
    @authorized
    async def get(self) -> None:
        try:
            report = await in_thread(_report)
        except GpulabError as error:
            raise HTTPError(503, str(error)) from error
        self.finish(json.dumps(report))


def add_routes(web_app: Application) -> None:
    """Add our addresses below the server's base URL."""
    web_app.add_handlers(
        ".*$", [(url_path_join(web_app.settings["base_url"], "gpulab", "api", "status"), _Status)]
    )


def _report() -> dict[str, Any]:
    settings = config.load()
    snapshot = observe(settings=settings)
    return status(snapshot, leases.live_leases(settings), settings)
