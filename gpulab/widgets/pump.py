"""The one thread of a kernel that carries samples from the sampler's record to the monitors.

A thread, since a synchronous cell stops asyncio tasks. It reads files, never NVML, prints nothing,
and ends by itself when no view answers, so that an idle kernel can be culled.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from gpulab.telemetry import series
from gpulab.widgets.feed import Feed
from gpulab.widgets.scene import Scene, compose
from gpulab.widgets.silence import Silence
from gpulab.widgets.window import Window

__all__ = ["SILENCE_SECONDS", "SPAN_SECONDS", "Pump", "Scene", "View", "shared"]

SILENCE_SECONDS = 30.0
"""The pump stops when no view has sent a heartbeat for so long; views send one every 10 s."""
SPAN_SECONDS = 180.0
"""How far back the lines go."""

_POLL_SECONDS = 0.25
_UPKEEP_SECONDS = 2.0
_WINDOW_SECONDS = 10.0
_GAP_SECONDS = 1.9
"""A sample is missing in between: the store may have it, because the sampler never waits for us."""
_FIRST_SECONDS = 1.5
_LOG = logging.getLogger(__name__)


class View(Protocol):
    """What the pump needs of a monitor."""

    mode: str
    """visible, all or team"""

    def show(self, scene: Scene) -> None:
        """Take over what has changed."""

    def show_window(self, packed: bytes, age: float) -> None:
        """Take over all samples; the newest is `age` seconds old."""

    def show_samples(self, packed: bytes, age: float) -> None:
        """Pass new samples on."""


class Pump:
    """Runs while a view answers. All public methods are safe from any thread."""

    def __init__(self, answering: Callable[[Callable[[], None]], bool] | None = None) -> None:
        """`answering(callback)` has the kernel's event loop call back; None where there is no kernel."""
        self.feed = Feed()
        self.window = Window(SPAN_SECONDS)
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._views: weakref.WeakKeyDictionary[View, float] = weakref.WeakKeyDictionary()
        self._greeted: weakref.WeakSet[View] = weakref.WeakSet()
        self._silence = Silence(answering)
        self._upkeep_at = self._window_at = -math.inf

    @property
    def running(self) -> bool:
        """Whether the thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    def attach(self, view: View) -> None:
        """Serve a new view: first what is known now (a sampler takes a moment to start), then the stream."""
        with self._lock:
            self._upkeep([view, *self._views])
            deadline = time.monotonic() + _FIRST_SECONDS
            self.feed.read()
            while self._may_still_come(deadline):
                self.feed.revive()
                self.feed.read()
                time.sleep(0.02)
            self._greet(view)
        self.beat(view)

    def beat(self, view: View) -> None:
        """A view says that somebody can see it."""
        with self._lock:
            self._views[view] = self._silence.seconds
            self._start()

    def wake(self, *_: object) -> None:
        """A cell starts: its views may want to answer and cannot, so all are served anew."""
        with self._lock:
            for view in list(self._views):
                self._views[view] = self._silence.seconds
            if self._views:
                self._start()

    def _may_still_come(self, deadline: float) -> bool:
        return self.feed.is_late and self.feed.sampling and time.monotonic() < deadline

    def _start(self) -> None:
        if not self.running:
            self._greeted.clear()  # they slept, so what they show is old
            self._upkeep_at = -math.inf
            self._silence.begin()
            self._thread = threading.Thread(target=self._run, name="gpulab-pump", daemon=True)
            self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                views = self._listening()
                if not views:
                    self._thread = None
                    return
                try:
                    self._step(views)
                except Exception:  # noqa: BLE001 - whatever a comm, a file or a driver does: no thread dies in a notebook
                    _LOG.debug("The monitor's pump stumbled", exc_info=True)
            self._wake.wait(_POLL_SECONDS)
            self._wake.clear()

    def _listening(self) -> list[View]:
        now = self._silence.listen()
        return [view for view, beat in self._views.items() if now - beat < SILENCE_SECONDS]

    def _step(self, views: list[View]) -> None:
        now = time.monotonic()
        if now - self._upkeep_at >= _UPKEEP_SECONDS:
            self._upkeep(views)
            self._show(views)
        if self.feed.read():
            self._show(views)
            self._send(views)
        elif self.feed.revive():
            self._show(views)
        for view in views:
            if view not in self._greeted:
                self._greet(view)
        if now - self._window_at >= _WINDOW_SECONDS:
            self._window_at = now
            self._refresh(views)

    def _upkeep(self, views: list[View]) -> None:
        self._upkeep_at = time.monotonic()
        self.feed.upkeep(waiters=any(view.mode == "team" for view in views))

    def _send(self, views: list[View]) -> None:
        """The newest snapshot as one row; all rows where it does not follow on what was sent before."""
        snapshot = self.feed.snapshot
        if snapshot is None:
            return
        if self.window.follows(snapshot, _GAP_SECONDS):
            packed = self.window.pack([self.window.append(snapshot)])
            _tell(views, lambda view: view.show_samples(packed, self.feed.age))
        else:
            settings = self.feed.settings
            self.window.begin(snapshot, series.recent(settings, SPAN_SECONDS, until=snapshot.time))
            self._send_window(views)

    def _refresh(self, views: list[View]) -> None:
        """All rows again; from the store, if one was missing lately that the sampler had not written yet."""
        snapshot = self.feed.snapshot
        holed = self.window.has_hole(within=3 * _WINDOW_SECONDS, gap=_GAP_SECONDS)
        if snapshot is not None and self.window.newest == snapshot.time and holed:
            self.window.begin(snapshot, series.recent(self.feed.settings, SPAN_SECONDS, until=snapshot.time))
        self._send_window(views)

    def _send_window(self, views: list[View]) -> None:
        if not self.window.rows:
            return
        packed = self.window.pack()
        _tell(views, lambda view: view.show_window(packed, self.feed.age))

    def _greet(self, view: View) -> None:
        if self.feed.snapshot is not None and self.window.newest != self.feed.snapshot.time:
            self._send([])
        self._show([view])
        self._send_window([view])
        self._greeted.add(view)

    def _show(self, views: list[View]) -> None:
        scenes = {mode: compose(self.feed, mode) for mode in {view.mode for view in views}}
        _tell(views, lambda view: view.show(scenes[view.mode]))


def _tell(views: list[View], message: Callable[[View], None]) -> None:
    """Tell each of them; one that cannot take it in keeps nothing from the others."""
    for view in views:
        try:
            message(view)
        except Exception:  # noqa: BLE001 - the rim: a comm may be closed, or be another program's
            _LOG.debug("A monitor could not be told", exc_info=True)


_shared: Pump | None = None
_sharing = threading.Lock()


def shared() -> Pump:
    """The pump of this kernel, made at first use. Raises ConfigError if the settings cannot be read."""
    global _shared  # noqa: PLW0603 - one per kernel is the point
    with _sharing:
        if _shared is None:
            _shared = Pump(_ask_kernel)
            _on_every_cell(_shared.wake)
        return _shared


def _ask_kernel(callback: Callable[[], None]) -> bool:
    """Have the kernel's event loop call back; False where there is none."""
    loop = getattr(getattr(_shell(), "kernel", None), "io_loop", None)
    if loop is None:
        return False
    loop.add_callback(callback)
    return True


def _on_every_cell(callback: Callable[..., None]) -> None:
    shell = _shell()
    if shell is not None:
        shell.events.register("pre_run_cell", callback)


def _shell() -> Any:
    from IPython import get_ipython

    return get_ipython()
