"""What happened on a process's GPUs between two instants: figures from the history, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpulab.config import Settings
from gpulab.hardware import record
from gpulab.hardware.devices import Device, Snapshot
from gpulab.hardware.throttling import brake_of
from gpulab.telemetry import series
from gpulab.telemetry.reporting.spans import Span
from gpulab.telemetry.reporting.verdict import Verdict, judge
from gpulab.telemetry.storing.rollups import MOST_WATTS
from gpulab.telemetry.storing.rows import ProcessRow, Sample

__all__ = ["DeviceReport", "Report", "between"]

_AROUND_SECONDS = 3.5
_AFTER_SECONDS = 1.5
_TICK_SECONDS = 0.01
"""Times are rounded in the history."""


class DeviceReport(NamedTuple):
    """One GPU between two instants; None where unknown."""

    uuid: str
    label: str
    """GPU 0, or the UUID where the number is not known."""
    name: str | None
    samples: tuple[Sample, ...]
    """Those taken between the two instants."""
    gpu_percent: float | None
    """Share of the time in which anybody's kernel ran; not how much of the GPU it filled."""
    gpu_max: float | None
    memory_percent: float | None
    """Share of the time in which memory was read or written."""
    memory_total_bytes: int | None
    memory_max_bytes: int | None
    """Of the whole device."""
    own_percent: float | None
    """This process's share of the GPU's time, by NVML's process utilization."""
    own_max_bytes: int | None
    own_growth_bytes: int | None
    """From the first instant to the last; negative if memory was given back."""
    others: int | None
    """Other processes that were there to compute meanwhile, less those known to have rested throughout."""
    energy_joules: float | None
    energy_source: str | None
    """counter (NVML's), or power (its integral)"""
    power_watts: float | None
    power_limit_watts: float | None
    braked: tuple[tuple[str, float], ...]
    """What held the clocks down, and for which share of the time."""
    pcie_rx_bytes_per_second: float | None
    """To the device, on average of the moments looked at."""
    pcie_tx_bytes_per_second: float | None
    nvlink_rx_bytes_per_second: float | None
    nvlink_tx_bytes_per_second: float | None
    kin: int | None = None
    """Of the others, those of the same account: they may be this process's own children."""
    unanswered: float = 0.0
    """Share of the samples, from 0 to 1, in which the device did not answer."""


class Report(NamedTuple):
    """What a cell did to the GPU. Jupyter shows it with a picture, a terminal as text."""

    start: float
    """Seconds since the epoch."""
    end: float
    wall_seconds: float
    cpu_seconds: float | None
    """Processor time of this process and its children; more than the wall's with several cores."""
    got: int
    """Samples that were answered, of the GPU with the fewest."""
    due: int
    simulated: bool
    devices: tuple[DeviceReport, ...]
    reason: str | None
    """Why there are no samples, if there are none."""

    @property
    def verdict(self) -> Verdict:
        """In words, with its figures."""
        return judge(self)

    def of_used(self) -> Report:
        """The same without devices that this process did not use; for one that may use any of many."""
        used = tuple(d for d in self.devices if d.own_max_bytes is None or d.own_max_bytes or d.own_percent)
        if used or not self.devices:
            return self._replace(devices=used)
        count = len(self.devices)
        which = "the GPU" if count == 1 else f"any of the {count} GPUs"
        reason = f"This process did not use {which} that it can see: the cell ran on the CPU."
        if not self.got:
            reason = f"the cell was too short for a sample of {which} that this process can see."
        return self._replace(devices=(), reason=reason)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the single samples."""
        verdict = self.verdict
        return {
            "schema": "gpulab.report/1",
            "start": self.start,
            "end": self.end,
            "wall_seconds": self.wall_seconds,
            "cpu_seconds": self.cpu_seconds,
            "samples": {"got": self.got, "due": self.due},
            "simulated": self.simulated,
            "reason": self.reason,
            "verdict": {"kind": verdict.kind, "sentence": verdict.sentence},
            "devices": [_plain(device) for device in self.devices],
        }

    def plot(self) -> Any:
        """The timeline as a matplotlib figure: utilization and memory of each GPU over the seconds."""
        from gpulab.telemetry.reporting.timeline import figure

        return figure(self)

    def __str__(self) -> str:
        from gpulab.telemetry.reporting.page import as_text

        return as_text(self)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from gpulab.telemetry.reporting.page import as_html

        return as_html(self)


def between(
    settings: Settings,
    start: float,
    end: float,
    *,
    pid: int | None,
    uuids: Sequence[str] | None,
    uid: int | None = None,
    wall_seconds: float | None = None,
    cpu_seconds: float | None = None,
    due_seconds: float = 0.2,
    simulated: bool | None = None,
    reason: str | None = None,
) -> Report:
    """Report on the time from `start` to `end` (seconds since the epoch). Never raises for a lack of data.

    Parameters
    ----------
    pid
        This process as NVML names it; None where it names the host's processes and this one is in a
        container, so that its own share is unknown.
    uuids
        The devices to report on; None for all that were sampled.
    uid
        The account of this process; None where it is not known.
    wall_seconds, cpu_seconds
        Measured by whoever ran the work, by clocks that do not jump; None where nobody did.
    due_seconds
        The period in which samples were asked for.
    reason
        Why there can be no samples, if that is known.
    """
    snapshot = record.latest(settings)
    found = series.samples(settings, start - _AROUND_SECONDS, end + _AFTER_SECONDS, uuids=uuids)
    processes = series.processes(settings, start, end + _AFTER_SECONDS)
    devices = tuple(
        _device(uuid, Span(samples, start, end, due_seconds), processes, snapshot, (pid, uid))
        for uuid, samples in found.items()
    )
    devices = tuple(sorted(devices, key=lambda device: device.label))
    got = min((sum(map(_answered, device.samples)) for device in devices), default=0)
    due = max(0, math.floor((end - start) / due_seconds + 1e-6))
    return Report(
        start,
        end,
        end - start if wall_seconds is None else wall_seconds,
        cpu_seconds,
        got,
        max(got, due),  # one that begins or ends between two can have one more than is due
        bool(snapshot and snapshot.simulated) if simulated is None else simulated,
        devices,
        reason if reason is not None or devices else series.trouble(settings) or _NO_SAMPLES,
    )


_NO_SAMPLES = "The sampler told nothing of that time; `gpulab doctor` says why."


def _answered(sample: Sample) -> bool:
    return sample.state in (None, "ok")


def _device(
    uuid: str,
    span: Span,
    processes: Sequence[ProcessRow],
    snapshot: Snapshot | None,
    identity: tuple[int | None, int | None],
) -> DeviceReport:
    """`identity`: this process's pid and uid."""
    pid, uid = identity
    known = snapshot.device(uuid) if snapshot is not None else None
    rows = [row for row in processes if row.uuid == uuid and row.time <= span.closing + _TICK_SECONDS]
    listed = known is None or known.processes is not None
    own = [row for row in rows if row.pid == pid] if pid is not None and listed else None
    others = _others(rows, pid, span) if listed else None
    joules, source = _energy(span)
    top = span.highest(lambda s: s.memory_used_bytes)
    return DeviceReport(
        uuid=uuid,
        label=_label(uuid, known),
        name=None if known is None else known.name,
        samples=span.samples,
        gpu_percent=span.mean(lambda s: s.gpu_percent),
        gpu_max=span.highest(lambda s: s.gpu_percent),
        memory_percent=span.mean(lambda s: s.memory_percent),
        memory_total_bytes=None if known is None else known.memory.total_bytes,
        memory_max_bytes=None if top is None else int(top),
        own_percent=None if own is None else _own_percent(own, span),
        own_max_bytes=None if own is None else _highest(own),
        own_growth_bytes=None if own is None else _growth(own, span),
        others=None if others is None else len(others),
        energy_joules=joules,
        energy_source=source,
        power_watts=span.mean(lambda s: s.power_watts),
        power_limit_watts=None if known is None else known.power_limit_watts,
        braked=_braked(span),
        pcie_rx_bytes_per_second=span.mean(lambda s: s.pcie_rx_bytes_per_second),
        pcie_tx_bytes_per_second=span.mean(lambda s: s.pcie_tx_bytes_per_second),
        nvlink_rx_bytes_per_second=span.mean(lambda s: s.nvlink_rx_bytes_per_second),
        nvlink_tx_bytes_per_second=span.mean(lambda s: s.nvlink_tx_bytes_per_second),
        kin=None if others is None or uid is None else len([o for o in others.values() if o == uid]),
        unanswered=_share_unanswered(span.samples),
    )


def _label(uuid: str, device: Device | None) -> str:
    if device is None:
        return uuid
    return f"GPU {device.index}" if device.kind == "gpu" else f"GPU {device.index}, slice {uuid[:12]}"


def _energy(span: Span) -> tuple[float | None, str | None]:
    joules = span.counted(lambda s: s.energy_joules, MOST_WATTS)
    if joules is not None:
        return joules, "counter"
    joules = span.integrated(lambda s: s.power_watts)
    return joules, None if joules is None else "power"


def _share_unanswered(samples: Sequence[Sample]) -> float:
    return sum(not _answered(sample) for sample in samples) / len(samples) if samples else 0.0


def _highest(own: Sequence[ProcessRow]) -> int | None:
    """The most that the process held; 0 if it was never there, None if a figure is missing."""
    sizes = [0 if row.gone else row.memory_bytes for row in own]
    return None if None in sizes else max((size for size in sizes if size is not None), default=0)


def _growth(own: Sequence[ProcessRow], span: Span) -> int | None:
    def held(rows: Sequence[ProcessRow]) -> int | None:
        return 0 if not rows or rows[-1].gone else rows[-1].memory_bytes

    first, last = held([row for row in own if row.time <= span.start]), held(own)
    return None if first is None or last is None else last - first


def _own_percent(own: Sequence[ProcessRow], span: Span) -> float | None:
    """Each row's figure is the mean since the row before."""
    before, total, seconds = span.start, 0.0, 0.0
    for row in own:
        if row.time > span.start:
            if row.gpu_percent is not None:
                total += row.gpu_percent * (row.time - before)
                seconds += row.time - before
            before = row.time
    if seconds:
        return total / seconds
    return None if own else 0.0


def _others(rows: Sequence[ProcessRow], pid: int | None, span: Span) -> dict[int, int | None] | None:
    """The uid of each, by its pid."""
    if pid is None:
        return None
    there = [
        row
        for row in rows
        if row.pid != pid and row.type == "compute" and not row.gone and row.time <= span.end
    ]
    shares: dict[int, list[float | None]] = {}
    for row in there:
        shares.setdefault(row.pid, []).append(row.gpu_percent)
    return {row.pid: row.uid for row in there if any(share != 0 for share in shares[row.pid])}


def _braked(span: Span) -> tuple[tuple[str, float], ...]:
    """The gravest reason of each sample, by its words; the most frequent first."""

    def of(sample: Sample) -> str | None:
        found = brake_of(sample.throttle_reasons)
        return None if found is None else found[0]

    words = sorted({word for _, sample in span.parts() if (word := of(sample)) is not None})

    def share(word: str) -> float:
        return span.share(lambda s: None if s.throttle_reasons is None else of(s) == word) or 0.0

    return tuple(sorted(((word, share(word)) for word in words), key=lambda pair: -pair[1]))


def _plain(device: DeviceReport) -> dict[str, Any]:
    plain = device._asdict()
    plain["samples"] = len(device.samples)
    plain["braked"] = dict(device.braked)
    return plain
