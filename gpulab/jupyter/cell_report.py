"""Taking the report on one cell: the clocks at both ends, the sampler's close watch between, the devices."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

from gpulab import config
from gpulab.allocation import session
from gpulab.config import Settings
from gpulab.errors import GpulabError
from gpulab.hardware import mask, pausing, record
from gpulab.hardware.devices import Snapshot
from gpulab.hardware.owners import sees_host_processes
from gpulab.jupyter import turn
from gpulab.telemetry import report, sampler
from gpulab.telemetry.report import Report
from gpulab.telemetry.sampling.election import lock_path, take_lock

__all__ = ["Instant", "Observation", "Taken", "look_back"]

_FIRST_SAMPLE_SECONDS, _LAST_SAMPLE_SECONDS, _GLANCE_SECONDS = 1.5, 0.6, 0.02
_FRESH_SECONDS = 2.5
_CLOSE_DUE_SECONDS, _DUE_SECONDS = 0.2, 1.0

Uuids = tuple[str, ...] | None
"""None: all devices."""


class Instant(NamedTuple):
    """One moment on each of the clocks, in seconds."""

    time: float
    """Since the epoch, as samples are dated."""
    monotonic: float
    cpu: float
    """Processor time of this process and of its children that have ended."""

    @classmethod
    def now(cls) -> Instant:
        return cls(time.time(), time.monotonic(), sum(os.times()[:4]))


class Taken(NamedTuple):
    """A report, and why there can be none where this kernel has no GPU."""

    report: Report
    no_gpu: str | None


class Observation:
    """A cell under close watch: five samples a second until `end`, whatever the cell does meanwhile."""

    def __init__(self) -> None:
        """Raises ConfigError. Waits for the first sample if no sampler ran; interrupted, it waits no more."""
        self.settings = config.load()
        self.interrupted = False
        ran = self._newest() is not None
        self._starts = sampler.ensure(self.settings)
        self._watch = sampler.watch(self.settings, links=True)
        try:
            if self._starts and not ran:
                self._wait_for_sample(time.time(), _FIRST_SAMPLE_SECONDS)
            self._uuids = _own_devices(self.settings, self._newest())
        except BaseException:
            self.close()
            raise
        self.begin = Instant.now()

    def end(self, end: Instant) -> Taken:
        """The report, after a last sample that is newer than the cell's end."""
        try:
            if self._newest() is not None:
                sampler.look(self.settings)
                self._wait_for_sample(end.time, _LAST_SAMPLE_SECONDS)
        finally:
            self.close()
        why = None if self._starts else _why_no_sampler(self.settings)
        return _take(self.settings, (self.begin, end), _CLOSE_DUE_SECONDS, self._uuids, why)

    def close(self) -> None:
        """End the watch."""
        self._watch.close()

    def _newest(self) -> Snapshot | None:
        return record.latest(self.settings, max_age=_FRESH_SECONDS)

    def _wait_for_sample(self, since: float, seconds: float) -> None:
        def there() -> bool:
            newest = self._newest()
            return newest is not None and newest.time >= since

        try:
            _wait(there, seconds)
        except KeyboardInterrupt:
            self.interrupted = True


def look_back(begin: Instant, end: Instant) -> Report:
    """The report on a cell that nobody watched, by the samples that there are. Raises ConfigError."""
    why = "No sampler ran while that cell did; with %%gpu as its first line the next report has samples."
    return _take(config.load(), (begin, end), _DUE_SECONDS, (), why).report


def _take(
    settings: Settings, ends: tuple[Instant, Instant], due: float, before: Uuids, why: str | None
) -> Taken:
    """`before`: the devices at its begin, for a cell that gave them back. `why` there may be no samples."""
    begin, end = ends
    snapshot = record.latest(settings, max_age=_FRESH_SECONDS)
    now = _own_devices(settings, snapshot)
    uuids = before if now == () else now
    names_us = (snapshot is not None and snapshot.simulated) or sees_host_processes()
    found = report.between(
        settings,
        begin.time,
        end.time,
        pid=os.getpid() if names_us else None,
        uuids=uuids,
        uid=os.getuid(),
        simulated=settings.simulate is not None,
        wall_seconds=end.monotonic - begin.monotonic,
        cpu_seconds=max(0.0, end.cpu - begin.cpu),
        due_seconds=due,
    )
    paused = pausing.paused(settings)
    if found.devices and (paused is None or found.got):
        is_free = session.current() is None and settings.visible_devices is None
        return Taken(found.of_used() if is_free else found, None)
    found = found._replace(devices=())  # in a pause they were last seen before the cell, if at all
    no_gpu = _no_gpu(settings, snapshot, uuids)
    return Taken(found._replace(reason=no_gpu or paused or why or found.reason), no_gpu)


def _own_devices(settings: Settings, snapshot: Snapshot | None) -> Uuids:
    """Those of this process: its lease's, else what CUDA_VISIBLE_DEVICES leaves."""
    lease = session.current()
    if lease is not None:
        return lease.gpus
    if snapshot is None or not snapshot.devices:
        return () if settings.visible_devices == "" else None
    try:
        visible = mask.visible_uuids(snapshot.devices, settings.visible_devices, settings.device_order)
    except GpulabError:
        return None  # numbers that only CUDA could tell apart
    return None if visible is None else tuple(sorted(visible))


def _no_gpu(settings: Settings, snapshot: Snapshot | None, uuids: Uuids) -> str | None:
    """Why this kernel has none, in words that go on from "this kernel has no GPU:".

    One that holds a lease in a pause has its GPU: it is only that nobody samples it.
    """
    if session.current() is not None and pausing.paused(settings) is not None:
        return None
    if snapshot is not None and not snapshot.driver.ok:
        return snapshot.driver.message
    if uuids == ():
        told = turn.last_words() or settings.no_gpu_reason
        return told or "it holds no lease, and CUDA_VISIBLE_DEVICES leaves none; `%gpu acquire` takes a GPU."
    if snapshot is not None and not snapshot.devices:
        return "there is none on this machine."
    return None


def _why_no_sampler(settings: Settings) -> str:
    why = ""
    try:
        lock = take_lock(lock_path(settings))
        if lock is not None:
            os.close(lock)
    except (OSError, ImportError) as error:
        why = f" ({error})"
    return f"The sampler cannot be started{why}; `gpulab doctor` says what to do."


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(_GLANCE_SECONDS)
