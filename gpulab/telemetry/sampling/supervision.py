"""What systemd is told of a service: that it is ready, alive, and about to end (sd_notify's protocol)."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from gpulab import config

__all__ = ["Supervision"]


class Supervision:
    """Tells systemd, where it asked to be told; else every call does nothing. Never raises."""

    def __init__(self, is_alive: Callable[[], bool]) -> None:
        """`is_alive` says whether the work goes on; while it does not, the watchdog is left to bark."""
        self._address, self._within = config.supervision()
        self._is_alive = is_alive
        self._over = threading.Event()

    def ready(self, status: str) -> None:
        """The work has begun; from now on the watchdog is told of each sign of life."""
        self._tell(f"READY=1\nSTATUS={' '.join(status.split())}")
        if self._within is not None:
            threading.Thread(target=self._watch, name="gpulab-watchdog", daemon=True).start()

    def stopping(self) -> None:
        """The end has begun."""
        self._over.set()
        self._tell("STOPPING=1")

    def _watch(self) -> None:
        while not self._over.wait((self._within or 1.0) / 3):
            if self._is_alive():
                self._tell("WATCHDOG=1")

    def _tell(self, message: str) -> None:
        if not self._address:
            return
        # An address that begins with @ is no file: the kernel knows it by a name that begins with NUL
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as courier,
        ):
            courier.setblocking(False)
            courier.sendto(message.encode(), address)
