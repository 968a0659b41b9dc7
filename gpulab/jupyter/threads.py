"""Work that may block, off the event loop: in a thread that keeps no process from ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(work: Callable[[], T], *, late: Callable[[T], None] | None = None) -> T:
    """Await `work()` in a thread of its own; `late` gets its result if nobody awaits it any more.

    Not `asyncio.to_thread`: a driver that hangs would fill the loop's few threads, which the server
    needs too, and the interpreter waits for those at its end.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    threading.Thread(target=_fulfil, args=(future, work), name="gpulab", daemon=True).start()
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if late is not None:
            future.add_done_callback(lambda done: None if done.exception() else late(done.result()))
        raise


def _fulfil(future: Future[T], work: Callable[[], T]) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - it is raised again where the work is awaited
        future.set_exception(error)
    else:
        future.set_result(result)
