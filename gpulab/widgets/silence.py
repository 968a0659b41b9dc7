"""For how long no view has answered, counted only while the kernel could have heard one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Silence"]


class Silence:
    """Seconds in which the kernel could have heard a view: those of a blocking cell do not count."""

    def __init__(self, answering: Callable[[Callable[[], None]], bool] | None) -> None:
        """`answering(callback)` has the kernel's event loop call back; None where there is no kernel."""
        self.seconds = 0.0
        self._answering = answering
        self._answered = threading.Event()
        self._answered.set()
        self._asked_at = time.monotonic()

    def begin(self) -> None:
        """The time in which nobody listened does not count."""
        self._asked_at = time.monotonic()

    def listen(self) -> float:
        """Count the time since the last call, if the kernel has answered since; ask it again."""
        now = time.monotonic()
        if self._answered.is_set():
            self.seconds += min(now - self._asked_at, 1.0)
            self._asked_at = now
            if self._answering is not None:
                self._answered.clear()
                if not self._answering(self._answered.set):
                    self._answered.set()
        return self.seconds
