"""Waiting in the queue as `gpulab run` shows it: live on a terminal, else a line when the place changes."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from gpulab.allocation.leases import live_leases
from gpulab.allocation.policy import Request
from gpulab.allocation.session import Lease
from gpulab.allocation.waiting import Standing, enqueue, stand
from gpulab.config import Settings
from gpulab.hardware import pausing
from gpulab.hardware.devices import Snapshot
from gpulab.units import format_bytes, format_duration

__all__ = ["ended_by_signals", "wait"]

_REFRESH_SECONDS = 2.0
_CALM_SECONDS = 10.0
"""Between two pictures in the first minute and after it, if the place stays: each costs ten milliseconds."""


def wait(
    request: Request,
    settings: Settings,
    look: Callable[[], Snapshot],
    *,
    snapshot: Snapshot,
    reason: str,
    seconds: float | None,
) -> Lease:
    """Draw a ticket and stand in the queue until it is served.

    `snapshot` and `reason` are of the first try, which failed. Raises what `waiting.stand` raises.
    """
    ticket = enqueue(request, settings, snapshot)
    asked = request.applied(settings)
    view: _Lines | _Picture
    with ended_by_signals():
        console = _terminal()
        if console is None:
            view = _Lines(asked, seconds, settings)
            return stand(ticket, request, settings, look, seconds=seconds, tell=view.tell, reason=reason)
        with _Picture(console, asked, snapshot, settings) as view:
            return stand(ticket, request, settings, look, seconds=seconds, tell=view.tell, reason=reason)


def what(request: Request) -> str:
    """What is asked for, in a few words."""
    if request.mode == "shared":
        return f"{format_bytes(request.memory_bytes)} of a GPU"
    return "a GPU" if request.gpus == 1 else f"{request.gpus} GPUs"


class _Lines:
    """For logs and pipes: a line at first, and then one whenever the place changes."""

    def __init__(self, request: Request, seconds: float | None, settings: Settings) -> None:
        self._request, self._settings = request, settings
        self._limit = "" if seconds is None else f" up to {format_duration(seconds)}"
        self._place: int | None = None
        self._paused: str | None = None

    def tell(self, standing: Standing, reason: str) -> None:
        place, total = standing
        self._tell_pause()
        if place == self._place:
            return
        where = f"place {place} of {total}"
        if self._place is None:
            line = f"{reason} Waiting{self._limit} for {what(self._request)}, at {where}; Ctrl-C stops it."
        else:
            line = f"Now at {where}."
        self._place = place
        _say(line)

    def _tell_pause(self) -> None:
        """Its begin and its end, once each; one that is the reason to wait is told as that."""
        paused = pausing.paused(self._settings)
        if paused == self._paused:
            return
        self._paused = paused
        if self._place is not None:
            _say(paused or "The GPUs are asked again.")


def _say(line: str) -> None:
    print(f"gpulab: {line}", file=sys.stderr, flush=True)


class _Picture:
    """For a terminal: place, time, what is asked for, and who has the GPUs; gone once it is served."""

    def __init__(self, console: Any, request: Request, snapshot: Snapshot, settings: Settings) -> None:
        from rich.live import Live

        self._request, self._snapshot, self._settings = request, snapshot, settings
        self._begun = time.monotonic()
        self._drawn, self._standing = -_REFRESH_SECONDS, Standing((0, 0))
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")

    def __enter__(self) -> _Picture:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def tell(self, standing: Standing, reason: str) -> None:
        now = time.monotonic()
        rest = _REFRESH_SECONDS if now - self._begun < 60 else _CALM_SECONDS
        if standing == self._standing and now - self._drawn < rest:
            return
        self._drawn, self._standing = now, standing
        self._live.update(self._page(standing, reason), refresh=True)

    def _page(self, standing: Standing, reason: str) -> Any:
        from rich.console import Group
        from rich.text import Text

        place, total = standing
        seconds = int(time.monotonic() - self._begun)
        waited = f", for {format_duration(seconds)}" if seconds else ""
        head = f"Waiting for {what(self._request)}: place {place} of {total}{waited}"
        simulated = " (simulated machine)" if self._snapshot.simulated else ""
        return Group(
            Text(head + simulated, style="bold"),
            self._holders(),
            Text(pausing.paused(self._settings) or reason, style="dim"),
            Text("Ctrl-C leaves the queue.", style="dim"),
        )

    def _holders(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        index = {device.uuid: device.index for device in self._snapshot.devices}
        leases = live_leases(self._settings)
        for lease in sorted(leases, key=lambda lease: min(index.get(uuid, 99) for uuid in lease.gpus)):
            numbers = sorted(index[uuid] for uuid in lease.gpus if uuid in index)
            gpus = ", ".join([*map(str, numbers), *(uuid for uuid in lease.gpus if uuid not in index)])
            share = format_bytes(lease.memory_bytes) if lease.mode == "shared" else "whole"
            held = format_duration(max(0.0, time.time() - lease.since))
            table.add_row(*(Text(cell) for cell in (f"GPU {gpus}", share, lease.who, f"for {held}")))
        return table


def _terminal() -> Any:
    """A console on stderr; None if that is no terminal that can be drawn on."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    return None if console.is_dumb_terminal else console


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """End of SIGTERM and SIGHUP as of Ctrl-C: the cursor comes back, and the ticket goes."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    mine = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL
    ]
    for number in mine:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)
