"""`gpulab status --watch`: the sampler's record, shown again and again on a terminal until Ctrl-C.

What lives long does not ask NVML itself, so a driver that hangs never stops this.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from gpulab.allocation.leases import live_leases
from gpulab.allocation.status import status
from gpulab.commands.leases import queue_lines
from gpulab.commands.queueing import ended_by_signals
from gpulab.commands.status import scope, trouble, versions
from gpulab.commands.watch_page import CURVE_POINTS, Page
from gpulab.commands.watch_rows import Silence, gpu_rows, short_name
from gpulab.commands.wording import clean
from gpulab.config import Settings
from gpulab.errors import RequestError
from gpulab.hardware.devices import Snapshot
from gpulab.hardware.record import latest
from gpulab.telemetry import sampler, series
from gpulab.units import format_duration

__all__ = ["watch"]

_STALE_SECONDS = 5.0
"""The sampler writes every second, so by then it no longer does."""
_TOUCH_SECONDS = 10.0
_POLL_SECONDS = 0.25
_CURVE_SECONDS = 600.0
_CURVES_EVERY = 10.0
_LOOK_BACK = 3600.0


def watch(settings: Settings, period: float) -> int:
    """Show the page every `period` seconds; ends with KeyboardInterrupt. Raises RequestError."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        raise RequestError("--watch needs a terminal; in a script or pipe use `gpulab status --json`.")
    view = _View(settings)
    with (
        ended_by_signals(),
        _resizes_noticed() as resized,
        Live(console=console, auto_refresh=False, screen=True, vertical_overflow="crop") as live,
    ):
        while True:
            live.update(view.look(), refresh=True)
            for _ in view.pauses(period):
                if resized():
                    live.refresh()


@contextlib.contextmanager
def _resizes_noticed() -> Iterator[Any]:
    """Yields a function that says whether the terminal's size has changed since it was last asked."""
    changed: list[int] = []
    before = signal.signal(signal.SIGWINCH, lambda number, _frame: changed.append(number))

    def resized() -> bool:
        found = bool(changed)
        changed.clear()
        return found

    try:
        yield resized
    finally:
        signal.signal(signal.SIGWINCH, before)


class _View:
    """What is shown, and for how long nothing new has come."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._snapshot: Snapshot | None = None
        self._changed = time.monotonic()
        self._well: dict[str, Silence] = {}
        self._curves: dict[str, tuple[float | None, ...]] = {}
        self._curves_read = -_CURVES_EVERY

    def look(self) -> Page:
        """The page now, with what is wrong with it above."""
        sampler.touch(self.settings)
        troubles = [] if sampler.ensure(self.settings) else [self._no_sampler()]
        self._read()
        if self._snapshot is not None or not troubles:
            troubles += self._silence()
        if self._snapshot is None:
            return Page("gpulab status", tuple(troubles), "", (), ())
        leases = live_leases(self.settings)
        report = status(self._snapshot, leases, self.settings)
        whose, known = scope(report, self.settings)
        troubles += [*([] if known else [whose]), *_troubles(report)]
        return Page(
            title=clean(_title(report, self._snapshot)),
            troubles=tuple(clean(sentence, 1000) for sentence in troubles),
            scope=whose if known else "",
            rows=gpu_rows(report, leases, self._silences(), self._recent_curves()),
            queue=[clean(line) for line in queue_lines(report["waiting"] or ())],
        )

    def pauses(self, period: float) -> Iterator[None]:
        """Until the next look, in short rests: after `period`, or once there is data again."""
        end = time.monotonic() + period
        touched = time.monotonic()
        while (left := end - time.monotonic()) > 0:
            silent = bool(self._silence())
            time.sleep(min(left, _POLL_SECONDS))
            yield
            if time.monotonic() - touched >= _TOUCH_SECONDS:
                touched = time.monotonic()
                sampler.touch(self.settings)
            if silent and self._read():
                return

    def _read(self) -> bool:
        """Whether the record is another one than before."""
        newest = latest(self.settings)
        if newest is None or newest == self._snapshot:
            return False
        self._snapshot, self._changed = newest, time.monotonic()
        return True

    def _no_sampler(self) -> str:
        return (
            f"The sampler cannot be started, because {self.settings.machine_dir} cannot be written; "
            "set GPULAB_DATA_DIR to a directory of yours, or run `gpulab doctor`."
        )

    def _silence(self) -> list[str]:
        """By two clocks: the record may be old already, and the wall's clock may jump."""
        seconds = time.monotonic() - self._changed
        if self._snapshot is not None:
            seconds = max(seconds, time.time() - self._snapshot.time)
        elif seconds < _STALE_SECONDS:
            return ["Waiting for the first reading."]
        if seconds < _STALE_SECONDS:
            return []
        old = "" if self._snapshot is None else "these figures are old; "
        log = sampler.log_path(self.settings)
        return [f"No data for {format_duration(seconds)}; {old}the sampler's log is {log}."]

    def _silences(self) -> dict[str, Silence]:
        """Since when each device that is not well is not: seen here, else told by the history."""
        devices = () if self._snapshot is None else self._snapshot.devices
        ill = {device.uuid for device in devices if device.state != "ok" and device.uuid is not None}
        now = time.time()
        for device in devices:
            if device.uuid is not None and device.uuid not in ill:
                self._well[device.uuid] = Silence(device.sampled_at or now, longer=False)
        unseen = ill - self._well.keys()
        if unseen:
            told = series.samples(self.settings, now - _LOOK_BACK, now, uuids=unseen)
            for uuid in unseen:
                well = [sample.time for sample in told.get(uuid, ()) if sample.state == "ok"]
                self._well[uuid] = Silence(max(well, default=now), longer=not well)
        return {uuid: self._well[uuid] for uuid in ill}

    def _recent_curves(self) -> dict[str, tuple[float | None, ...]]:
        if time.monotonic() - self._curves_read >= _CURVES_EVERY:
            self._curves_read, now = time.monotonic(), time.time()
            told = series.reduced(self.settings, now - _CURVE_SECONDS, now, points=CURVE_POINTS)
            self._curves = {uuid: _slots(points, now) for uuid, points in told.items()}
        return self._curves


def _slots(points: list[series.Point], now: float) -> tuple[float | None, ...]:
    """A value for each part of the time, the newest last."""
    slots: list[float | None] = [None] * CURVE_POINTS
    for point in points:
        place = int((point.time - now + _CURVE_SECONDS) / _CURVE_SECONDS * CURVE_POINTS)
        if 0 <= place < CURVE_POINTS and point.gpu_percent is not None:
            slots[place] = point.gpu_percent
    return tuple(slots)


def _title(report: dict[str, Any], snapshot: Snapshot) -> str:
    """When, which machine, and what it is made of."""
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.time))
    names = Counter(short_name(device["name"]) for device in report["devices"])
    models = ", ".join(f"{count} × {name}" for name, count in names.most_common())
    simulated = ["simulated machine"] if report["simulated"] else []
    return " · ".join(
        [clock, report["host"], *simulated, models or f"GPUs: {report['nvml']['state']}", *versions(report)]
    )


def _troubles(report: dict[str, Any]) -> list[str]:
    driver = report["nvml"]
    troubles = [] if driver["state"] == "ok" else [str(driver["message"] or driver["state"])]
    return troubles + [trouble(device) for device in report["devices"] if device["message"]]
