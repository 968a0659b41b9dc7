"""A call that may never return, in a thread that nobody has to wait for."""

from __future__ import annotations

import threading
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Guarded", "in_turn"]


class Guarded:
    """`work` running in another thread from now on, or once it is its turn.

    Threads of the lowest kind: the interpreter does not wait for them at its end. `threading` must be
    imported before the first of them, because before Python 3.13 it takes the thread that imports it
    (through pynvml it would be one of these) for the main thread, which the interpreter waits for.
    """

    def __init__(self, work: Callable[[], Any], *, start: bool = True) -> None:
        self.value: Any = None
        self.error: Exception | None = None
        self._started = time.monotonic()
        self._work = work
        self._running = threading.Lock()
        self._running.acquire()
        if start:
            self._start()

    def _start(self) -> None:
        try:
            start_new_thread(self.run, ())
        except RuntimeError as error:  # the account may start no more threads
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """It will never run."""
        self.error = error
        self._running.release()

    def run(self) -> None:
        """Do the work in this thread."""
        self._started = time.monotonic()
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


def in_turn(works: Sequence[Callable[[], Any]], patience: float) -> list[Guarded]:
    """All of `works`, one after the other in one thread: many threads cost more than quick calls do.

    Where one takes more than `patience` seconds, another thread goes on with the rest, so that none waits
    for another that hangs. Returns as soon as each has begun; whoever needs one waits for it.
    """
    calls = [Guarded(work, start=False) for work in works]
    left = deque(calls)
    for _ in calls:
        worker = Guarded(lambda: _take(left))
        if worker.error is not None:
            while left:
                left.pop().fail(worker.error)
        while _advances(left, worker, patience):
            pass
        if not left:
            return calls
    while left:  # as many threads as calls, of which some have not run yet on a busy machine
        time.sleep(patience)
    return calls


def _advances(left: deque[Guarded], worker: Guarded, patience: float) -> bool:
    """Wait a moment; whether calls are left, but fewer than before."""
    before = len(left)
    return before > 0 and not worker.wait(time.monotonic() + patience) and 0 < len(left) < before


def _take(left: deque[Guarded]) -> None:
    while left:
        try:
            call = left.popleft()
        except IndexError:  # another thread was faster
            return
        call.run()
