"""A call that may never return, in a thread of its own that nobody has to wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Guarded"]

T = TypeVar("T")


class Guarded(Generic[T]):
    """`work` running in a daemon thread from now on."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.value: T | None = None
        self.error: Exception | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True, name="gpulab-nvml")
        self._thread.start()

    def _run(self) -> None:
        try:
            self.value = self._work()
        except Exception as error:  # noqa: BLE001 - the thread's rim: whoever waits looks at it
            self.error = error

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self, deadline: float) -> bool:
        """Wait until `deadline` (monotonic seconds) at most; whether the work is done."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return self.is_done()
