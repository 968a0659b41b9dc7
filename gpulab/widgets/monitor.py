"""`gpulab.monitor()`: the GPUs live in the notebook. Traits only: the pump fills, frontend/ draws them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from gpulab.errors import GpulabError, RequestError
from gpulab.widgets import describe, pump
from gpulab.widgets.scene import EMPTY, Scene

__all__ = ["Monitor", "monitor", "team"]

_STATIC = Path(__file__).resolve().parent.parent / "static"
_DEVICES = ("visible", "all")


class Monitor(anywidget.AnyWidget):
    """Utilization, memory, power and temperature of each GPU, now and over the last minutes.

    devices: `visible` (those this process may use, the others on request) or `all`.
    team: show who holds each GPU rather than what this kernel has.
    Raises RequestError for other `devices`, GpulabError if the front end was never bundled.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    machine = traitlets.Dict(help="Mode, host, simulated or not, and what is wrong if anything is.").tag(
        sync=True
    )
    devices: Any = traitlets.List(help="What changes seldom, one dictionary per device.").tag(sync=True)
    waiting: Any = traitlets.List(help="Who waits for a GPU, in order; in the team's view only.").tag(
        sync=True
    )
    text = traitlets.Unicode(help="The figures in words.").tag(sync=True)
    span = traitlets.Float(pump.SPAN_SECONDS, help="Seconds that the lines go back.").tag(sync=True)
    window = traitlets.Bytes(help="The samples of that time; see gpulab.widgets.window.").tag(sync=True)
    window_age = traitlets.Float(help="Seconds since the newest of them was taken.").tag(sync=True)

    def __init__(self, devices: str = "visible", *, team: bool = False) -> None:
        if devices not in _DEVICES:
            raise RequestError(f"devices is {devices!r}; it must be one of {', '.join(_DEVICES)}.")
        self.mode = "team" if team else devices
        self._scene = EMPTY
        super().__init__()
        self._pump = pump.shared()
        self._pump.attach(self)
        self.on_msg(self._hear)

    @traitlets.default("_esm")
    def _default_esm(self) -> str:
        return _front_end("monitor.js")

    @traitlets.default("_css")
    def _default_css(self) -> str:
        return _front_end("monitor.css")

    def __repr__(self) -> str:
        return f"<gpulab monitor, {len(self.devices)} GPUs>"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """Called by IPython at display; beside the widget the figures of now, for pages without a kernel."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is not None:
            scene = self._scene
            data = bundle[0]
            data["text/plain"] = self._words()
            data["text/html"] = describe.as_html(scene.snapshot, scene.machine, scene.devices)
        return bundle

    def _words(self) -> str:
        scene = self._scene
        return describe.as_text(scene.snapshot, scene.machine, scene.devices, age=scene.age)

    def show(self, scene: Scene) -> None:
        """Called by the pump with each snapshot; only what has changed is sent to the front end."""
        self._scene = scene
        with self.hold_sync():
            self.machine = scene.machine
            self.devices = scene.devices
            self.waiting = scene.waiting

    def show_window(self, packed: bytes, age: float) -> None:
        """Called by the pump at display, every ten seconds, and after a gap."""
        with self.hold_sync():
            self.text = self._words()
            self.window_age = age
            self.window = packed

    def show_samples(self, packed: bytes, age: float) -> None:
        """Called by the pump each second."""
        self.send({"kind": "samples", "age": age}, buffers=[packed])

    def _hear(self, _: Any, content: Any, __: Any) -> None:
        """Called for each message of the front end; the only one is its heartbeat."""
        if isinstance(content, dict) and content.get("kind") == "beat":
            self._pump.beat(self)


def monitor(devices: str = "visible") -> Monitor:
    """Show the GPUs live: those this process may use, this kernel's own marked.

    `devices="all"` shows every GPU of the machine. Raises RequestError for anything else.
    """
    return Monitor(devices)


def team() -> Monitor:
    """Show every GPU of the machine with its holder, for the dashboard of the team that shares it."""
    return Monitor(team=True)


@cache
def _front_end(name: str) -> str:
    """Read once, as text: a file path would have anywidget watch it and keep every widget alive."""
    try:
        return (_STATIC / name).read_text(encoding="utf-8")
    except OSError as error:
        raise GpulabError(
            "The front end of this tree is not bundled; run `python frontend/bundle.py`, then restart."
        ) from error
