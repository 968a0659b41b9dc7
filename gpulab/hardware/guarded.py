"""A call that may never return, in a thread of its own that nobody has to wait for."""

from __future__ import annotations

import threading
import time
from _thread import start_new_thread
from collections.abc import Callable
from typing import Any

__all__ = ["Guarded"]


class Guarded:
    """`work` running in another thread from now on.

    Threads of the lowest kind: the interpreter does not wait for them at its end. `threading` must be
    imported before the first of them, because before Python 3.13 it takes the thread that imports it
    (through pynvml it would be one of these) for the main thread, which the interpreter waits for.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        self.value: Any = None
        self.error: Exception | None = None
        self._started = time.monotonic()
        self._work = work
        self._running = threading.Lock()
        self._running.acquire()
        try:
            start_new_thread(self._run, ())
        except RuntimeError as error:  # the account may start no more threads
            self.error = error
            self._running.release()

    def _run(self) -> None:
        try:
            self.value = self._work()
        except Exception as error:  # noqa: BLE001 - the thread's rim: whoever waits looks at it
            self.error = error
        finally:
            self._running.release()

    def is_done(self) -> bool:
        return not self._running.locked()

    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self._started

    def wait(self, deadline: float) -> bool:
        """Wait until `deadline` (monotonic seconds) at most; whether the work is done."""
        if not self._running.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return False
        self._running.release()
        return True
