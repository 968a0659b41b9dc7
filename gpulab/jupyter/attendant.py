"""The attendant of a kernel: one quiet thread that looks after what is due between and during cells.

To add a duty, once the extension is loaded::

    from gpulab.jupyter.attendant import DONE, current

    attendant = current()                    # None where no extension is loaded
    if attendant is not None:
        attendant.attend(duty, every=2.0)    # in the thread, at least that many seconds apart
        attendant.before_cell(act)           # on the main thread, before each cell; may print
        attendant.say("one sentence.")       # from any thread; shown once

A duty takes nothing, returns at once or within some seconds, and returns DONE when there is nothing
more to attend; what it raises is logged. The thread runs only while there is a duty.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["DONE", "Attendant", "current", "install"]

DONE = object()
"""What a duty returns when it is to be forgotten."""

_LOG = logging.getLogger(__name__)

_attendant: Attendant | None = None


class _Duty:
    def __init__(self, act: Callable[[], object], every: float) -> None:
        self.act = act
        self.every = every
        self.due = time.monotonic()


class Attendant:
    """Duties in a daemon thread, acts before each cell, and sentences under the cell that ran last."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._lock = threading.Lock()
        self._duties: list[_Duty] = []
        self._acts: list[Callable[[], object]] = []
        self._unsaid: list[str] = []
        self._cell: dict[str, Any] | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Event()
        shell.events.register("pre_run_cell", self._on_cell)

    def attend(self, duty: Callable[[], object], every: float) -> None:
        """Call `duty` from now on, `every` seconds apart or more, until it returns DONE."""
        with self._lock:
            self._duties.append(_Duty(duty, every))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gpulab-attendant", daemon=True)
                self._thread.start()
        self._changed.set()

    def before_cell(self, act: Callable[[], object]) -> None:
        """Call `act` on the main thread before each cell runs, until it returns DONE."""
        self._acts.append(act)

    def say(self, sentence: str, *, with_next_cell: bool = False, later: bool = True) -> None:
        """Show a sentence once: under the cell that ran last, or `with_next_cell` before the next one.

        Before any cell has run, and where there is no front end to show it, it waits for the next one;
        without `later` it is then forgotten.
        """
        if (with_next_cell or not self._show(sentence)) and later:
            self._unsaid.append(sentence)

    def _run(self) -> None:
        while (pause := self._turn()) is not None:
            self._changed.wait(pause)
            self._changed.clear()

    def _turn(self) -> float | None:
        """Do what is due; return the seconds until the next duty, or None when there is none left."""
        for duty in list(self._duties):
            if duty.due <= time.monotonic():
                if _attempt(duty.act) is DONE:
                    self._duties.remove(duty)
                duty.due = time.monotonic() + duty.every
        with self._lock:
            if not self._duties:
                self._thread = None
                return None
            return max(0.0, min(duty.due for duty in self._duties) - time.monotonic())

    def _on_cell(self, *_: object) -> None:
        """Before a cell: not before one that a running cell runs, nor in another thread than the main one."""
        cell = self._asked()
        nested = (
            cell is not None and self._cell is not None and cell.get("header") == self._cell.get("header")
        )
        if nested or threading.current_thread() is not threading.main_thread():
            return
        self._cell = cell
        for act in list(self._acts):
            if _attempt(act) is DONE:
                self._acts.remove(act)
        while self._unsaid:
            print(f"gpulab: {self._unsaid.pop(0)}", flush=True)

    def _asked(self) -> dict[str, Any] | None:
        """The message that asked for this cell; None outside of a kernel."""
        get_parent = getattr(self._shell, "get_parent", None)
        return get_parent() or None if get_parent is not None else None

    def _show(self, sentence: str) -> bool:
        """Publish under the last cell. Not by `print`, which from a thread goes to whichever runs next."""
        publisher: Any = getattr(self._shell, "display_pub", None)
        cell = self._cell
        if cell is None or not hasattr(publisher, "pub_socket"):
            return False
        content = {"data": {"text/plain": f"gpulab: {sentence}"}, "metadata": {}, "transient": {}}
        try:
            publisher.session.send(
                publisher.pub_socket, "display_data", content, parent=cell, ident=publisher.topic
            )
        except Exception:  # noqa: BLE001 - ipykernel is not ours, and the sentence is not lost
            _LOG.debug("a sentence could not be shown under the last cell", exc_info=True)
            return False
        return True


def install(shell: Any) -> Attendant:
    """The attendant of this kernel, made at the first call."""
    global _attendant  # noqa: PLW0603 - one for each process, and this module is its home
    if _attendant is None:
        _attendant = Attendant(shell)
    return _attendant


def current() -> Attendant | None:
    """The attendant of this kernel; None where the extension is not loaded."""
    return _attendant


def _attempt(act: Callable[[], object]) -> object:
    try:
        return act()
    except Exception:  # noqa: BLE001 - neither a cell nor the other duties suffer from it
        _LOG.debug("%r failed", act, exc_info=True)
        return None
