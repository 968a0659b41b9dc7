"""The one thread of a kernel that carries samples from the sampler's record to the monitors.

A thread, since a synchronous cell stops asyncio tasks. It reads a file, never NVML, prints nothing,
and ends by itself when no view answers, so that an idle kernel can be culled.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from gpulab import config
from gpulab.allocation import leases as lease_files
from gpulab.allocation import session
from gpulab.errors import GpulabError
from gpulab.hardware import mask, record
from gpulab.hardware.devices import Snapshot
from gpulab.telemetry import sampler, store
from gpulab.widgets import describe
from gpulab.widgets.window import Window

__all__ = ["SILENCE_SECONDS", "SPAN_SECONDS", "Pump", "Scene", "View", "shared"]

SILENCE_SECONDS = 30.0
"""The pump stops when no view has sent a heartbeat for so long; views send one every 10 s."""
SPAN_SECONDS = 180.0
"""How far back the lines go."""

_POLL_SECONDS = 0.25
_UPKEEP_SECONDS = 2.0
_WINDOW_SECONDS = 10.0
_GAP_SECONDS = 2.5
_LATE_SECONDS = 1.5
_FIRST_SECONDS = 1.5
_LOG = logging.getLogger(__name__)


class Scene(NamedTuple):
    """What a monitor shows, less the samples."""

    machine: dict[str, Any]
    devices: list[dict[str, Any]]
    snapshot: Snapshot | None


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
        self.settings = config.load()
        self.window = Window(SPAN_SECONDS)
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._views: weakref.WeakKeyDictionary[View, float] = weakref.WeakKeyDictionary()
        self._greeted: weakref.WeakSet[View] = weakref.WeakSet()
        self._silence = _Silence(answering)
        self._snapshot: Snapshot | None = None
        self._signature: tuple[int, int] | None = None
        self._leases: tuple[lease_files.LeaseRecord, ...] = ()
        self._sampling = True
        self._upkeep_at = self._window_at = self._ensured_at = -math.inf

    @property
    def running(self) -> bool:
        """Whether the thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    def attach(self, view: View) -> None:
        """Serve a new view: first what is known now (a sampler takes a moment to start), then the stream."""
        with self._lock:
            self._upkeep()
            deadline = time.monotonic() + _FIRST_SECONDS
            while (
                not self._read() and self._snapshot is None and self._sampling and time.monotonic() < deadline
            ):
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
            self._upkeep()
            self._show(views)
        if self._read():
            self._show(views)
            self._send(views)
        elif self._age() > _LATE_SECONDS and now - self._ensured_at >= 1.0:
            self._ensure()
            self._show(views)
        for view in views:
            if view not in self._greeted:
                self._greet(view)
        if now - self._window_at >= _WINDOW_SECONDS:
            self._window_at = now
            self._send_window(views)

    def _upkeep(self) -> None:
        """What need not be done each second: tell the sampler, look at leases, read the environment anew."""
        self._upkeep_at = time.monotonic()
        try:
            self.settings = config.load()
        except GpulabError:
            _LOG.debug("Settings have become unreadable; the old ones stay", exc_info=True)
        sampler.touch(self.settings)
        self._leases = lease_files.live_leases(self.settings)
        if self._age() > _LATE_SECONDS:
            self._ensure()

    def _ensure(self) -> None:
        self._ensured_at = time.monotonic()
        self._sampling = sampler.ensure(self.settings)

    def _age(self) -> float:
        """Seconds since the newest snapshot; infinite before the first."""
        return math.inf if self._snapshot is None else max(0.0, time.time() - self._snapshot.time)

    def _read(self) -> bool:
        """Take the newest snapshot, if there is a newer one; True if so."""
        try:
            status = os.stat(record.record_path(self.settings))
        except OSError:
            return False
        signature = (status.st_ino, status.st_mtime_ns)
        if signature == self._signature:
            return False
        self._signature = signature
        snapshot = record.latest(self.settings)
        if snapshot is None or (self._snapshot is not None and snapshot.time == self._snapshot.time):
            return False
        self._snapshot = snapshot
        return True

    def _send(self, views: list[View]) -> None:
        """The newest snapshot as one row; all rows where it does not follow on what was sent before."""
        snapshot = self._snapshot
        if snapshot is None:
            return
        if self.window.follows(snapshot, _GAP_SECONDS):
            packed = self.window.pack([self.window.append(snapshot)])
            _tell(views, lambda view: view.show_samples(packed, self._age()))
        else:
            self.window.begin(snapshot, store.recent(self.settings, SPAN_SECONDS, until=snapshot.time))
            self._send_window(views)

    def _send_window(self, views: list[View]) -> None:
        if not self.window.rows:
            return
        packed = self.window.pack()
        _tell(views, lambda view: view.show_window(packed, self._age()))

    def _greet(self, view: View) -> None:
        if self._snapshot is not None and self.window.newest != self._snapshot.time:
            self._send([])
        self._show([view])
        self._send_window([view])
        self._greeted.add(view)

    def _show(self, views: list[View]) -> None:
        scenes = {mode: self._scene(mode) for mode in {view.mode for view in views}}
        _tell(views, lambda view: view.show(scenes[view.mode]))

    def _scene(self, mode: str) -> Scene:
        trouble = ""
        if self._snapshot is None and not self._sampling:
            folder = self.settings.machine_dir
            trouble = f"GPUs cannot be sampled: {folder} cannot be written; point GPULAB_DATA_DIR elsewhere."
        machine = describe.describe_machine(
            self._snapshot, mode=mode, host=config.host_name() if mode == "team" else "", trouble=trouble
        )
        return Scene(machine, self._devices(mode), self._snapshot)

    def _devices(self, mode: str) -> list[dict[str, Any]]:
        snapshot = self._snapshot
        if snapshot is None:
            return []
        lease = session.current()
        return describe.describe_devices(
            snapshot,
            self._leases,
            own=None if lease is None else lease.id,
            visible=self._visible(snapshot) if mode == "visible" else None,
            drained=self.settings.drained,
            names=self.settings.names,
        )

    def _visible(self, snapshot: Snapshot) -> frozenset[str] | None:
        try:
            return mask.visible_uuids(
                snapshot.devices, self.settings.visible_devices, self.settings.device_order
            )
        except GpulabError:
            return None  # a mask that cannot be read hides nothing here


def _tell(views: list[View], message: Callable[[View], None]) -> None:
    """Tell each of them; one that cannot take it in keeps nothing from the others."""
    for view in views:
        try:
            message(view)
        except Exception:  # noqa: BLE001 - the rim: a comm may be closed, or be another program's
            _LOG.debug("A monitor could not be told", exc_info=True)


class _Silence:
    """Seconds in which the kernel could have heard a view: those of a blocking cell do not count."""

    def __init__(self, answering: Callable[[Callable[[], None]], bool] | None) -> None:
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
