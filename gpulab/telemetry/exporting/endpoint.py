"""The HTTP address that Prometheus scrapes. Its clients can neither stop the sampling nor fill the process.

Each connection has a thread of its own, a few seconds for all of it, and gives way to newer ones.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from gpulab.errors import GpulabError

__all__ = ["DEFAULT_PORT", "Endpoint", "EndpointError"]

DEFAULT_PORT = 19400
"""Not dcgm-exporter's 9400, so that both can run, and outside of the range that the system hands out."""
_MOST_CONNECTIONS = 32
_MOST_SECONDS = 10.0
_PLAIN = "text/plain; charset=utf-8"
_LOG = logging.getLogger(__name__)

Answer = Callable[[str | None], tuple[bytes, str]]


class EndpointError(GpulabError):
    """The address cannot be listened at."""


class Endpoint:
    """`answer`, given the client's Accept header, at http://ADDRESS:PORT/metrics until `close`."""

    def __init__(self, address: str, port: int, answer: Answer) -> None:
        """Port 0 takes a free one. Raises EndpointError."""
        try:
            self._server = _Server(address, port, answer)
        except (OSError, OverflowError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise EndpointError(
                f"Metrics cannot be offered at {_joined(address, port)} ({reason}); choose another --port or "
                "--address, or leave them out with --no-metrics."
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="gpulab-metrics", daemon=True)

    @property
    def url(self) -> str:
        """Where Prometheus finds the metrics."""
        address, port = self._server.server_address[:2]
        return f"http://{_joined(str(address), int(port))}/metrics"

    def start(self) -> None:
        """Answer from now on, in threads of its own."""
        self._thread.start()

    def close(self) -> None:
        """Answer no more; whoever is being answered is let go of."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: str, port: int, answer: Answer) -> None:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, where = found[0]
        self.answer = answer
        self._open: dict[Any, float] = {}
        self._lock = threading.Lock()
        super().__init__(where, _Conversation)  # type: ignore[arg-type]  # of either family

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= _MOST_CONNECTIONS:
                self._hang_up(next(iter(self._open)))  # the oldest
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Twice a second, between two connections: those that take too long have had their time."""
        with self._lock:
            now = time.monotonic()
            for connection in [one for one, since in self._open.items() if now - since > _MOST_SECONDS]:
                self._hang_up(connection)

    def _hang_up(self, connection: socket.socket) -> None:
        """End what its thread waits for; that thread closes it."""
        del self._open[connection]
        with contextlib.suppress(OSError):  # it may have ended by itself
            connection.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as it is called
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):  # clients that leave early are their own business
            _LOG.warning("A scrape failed: %s: %s", type(error).__name__, error)


class _Conversation(BaseHTTPRequestHandler):
    server: _Server
    server_version = "gpulab"
    sys_version = ""
    timeout = _MOST_SECONDS

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._send(*self._metrics())
        elif path == "/":
            self._send(200, b"gpulab: the metrics are at /metrics\n")
        else:
            self._send(404, b"There is only /metrics.\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _metrics(self) -> tuple[int, bytes, str]:
        try:
            return 200, *self.server.answer(self.headers.get("Accept"))
        except Exception as error:  # noqa: BLE001 - the rim: a scrape that breaks is told and costs no other
            _LOG.warning("The metrics cannot be made: %s: %s", type(error).__name__, error)
            return 500, b"The metrics cannot be made; see the log.\n", _PLAIN

    def _send(self, code: int, body: bytes, content_type: str = _PLAIN) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the library calls it
        """Nobody reads a line for each scrape."""


def _joined(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
