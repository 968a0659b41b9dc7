"""What the Jupyter server answers for gpulab.

`GET /gpulab/api/status`, as `gpulab status --json`, and, where it is turned on, `GET /gpulab/metrics` for
Prometheus.
"""

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

__all__ = ["add_routes", "offers_metrics"]


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


class _Metrics(APIHandler):
    """The machine and its leases for Prometheus, from the sampler's record alone."""

    auth_resource = "gpulab"
    _track_activity = False

    def initialize(self, source: Metrics) -> None:
        self._source = source

    @authenticated
    @authorized
    async def get(self) -> None:
        accept = self.request.headers.get("Accept")
        try:
            body, content_type = await in_thread(lambda: self._source.scrape(accept))
        except GpulabError as error:
            raise HTTPError(503, str(error)) from error
        self.finish(body, set_content_type=content_type)


class Metrics:
    """What is remembered between two scrapes of one server."""

    def __init__(self) -> None:
        self._registry: Any = None

    def scrape(self, accept: str | None) -> tuple[bytes, str]:
        """The answer and its content type; the sampler runs while somebody scrapes. Raises ConfigError."""
        from gpulab.telemetry import exporter, sampler

        settings = config.load()
        sampler.ensure(settings)
        sampler.touch(settings)
        if self._registry is None:
            self._registry = exporter.registry(exporter.Collector(settings))
        return exporter.render(self._registry, accept)


def add_routes(web_app: Application, *, metrics: bool = False) -> None:
    """Add our addresses below the server's base URL; that of the metrics only if they are wanted."""
    base = url_path_join(web_app.settings["base_url"], "gpulab")
    routes: list[Any] = [(url_path_join(base, "api", "status"), _Status)]
    if metrics:
        routes.append((url_path_join(base, "metrics"), _Metrics, {"source": Metrics()}))
    web_app.add_handlers(".*$", routes)


def offers_metrics(server_config: Any) -> bool:
    """Whether this server's configuration (c.Gpulab.metrics = True) or the settings ask for metrics.

    Raises ConfigError.
    """
    told = server_config.Gpulab.get("metrics") if "Gpulab" in server_config else None
    if told is None:
        return config.load().metrics
    return str(told).lower() in ("true", "1")  # on the command line it is a text


def _report() -> dict[str, Any]:
    settings = config.load()
    snapshot = observe(settings=settings)
    return status(snapshot, leases.live_leases(settings), settings)
