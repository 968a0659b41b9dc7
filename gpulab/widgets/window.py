"""Samples as the front end reads them: a header and rows of small floats; one row, or a whole window."""

from __future__ import annotations

import itertools
import math
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpulab.hardware.devices import Device, Snapshot
from gpulab.telemetry.series import Sample

__all__ = ["FIGURES", "Row", "Window", "pack"]

FIGURES = 4
"""Per device, in this order: utilization (percent), memory in use (MiB), power (W), temperature (°C)."""

_HEADER = struct.Struct("<dII")
_MIB = 2.0**20
_UNKNOWN = (math.nan,) * FIGURES
_FLOAT32_MAX = 3.4e38


class Row(NamedTuple):
    """Every device at one instant."""

    time: float
    """Seconds since the epoch."""
    figures: tuple[float, ...]
    """FIGURES of each device in turn; NaN where unknown."""


def pack(rows: Sequence[Row], *, layout: int, devices: int) -> bytes:
    """Base time (float64), `layout` and `devices` (uint32), then float32: seconds since base, figures.

    Little-endian. `layout` is the number of the device list that the rows belong to.
    """
    base = rows[0].time if rows else 0.0
    flat: list[float] = []
    for row in rows:
        flat.append(row.time - base)
        flat.extend(row.figures)
    return _HEADER.pack(base, layout, devices) + struct.pack(f"<{len(flat)}f", *flat)


class Window:
    """The rows of the last `span` seconds for one list of devices; a new list begins a new layout."""

    def __init__(self, span: float) -> None:
        self.span = span
        self.layout = 0
        self.uuids: tuple[str | None, ...] | None = None
        self.rows: deque[Row] = deque()

    @property
    def newest(self) -> float | None:
        """The time of the newest row."""
        return self.rows[-1].time if self.rows else None

    def follows(self, snapshot: Snapshot, gap: float) -> bool:
        """Whether the snapshot continues the rows: same devices, and nothing missed in between."""
        if self.uuids != _uuids(snapshot) or self.newest is None:
            return False
        return 0 < snapshot.time - self.newest <= gap

    def has_hole(self, *, within: float, gap: float) -> bool:
        """Whether two rows of the last `within` seconds are more than `gap` seconds apart."""
        recent = [row.time for row in self.rows if row.time >= self.rows[-1].time - within]
        return any(after - before > gap for before, after in itertools.pairwise(recent))

    def begin(self, snapshot: Snapshot, history: dict[str, list[Sample]]) -> None:
        """Start over from the stored history, for the devices of this snapshot."""
        if self.uuids != _uuids(snapshot):
            self.uuids = _uuids(snapshot)
            self.layout += 1
        self.rows = deque(_merge(self.uuids, history, before=snapshot.time - 1e-3))
        self.append(snapshot)

    def append(self, snapshot: Snapshot) -> Row:
        """Add the newest snapshot and let the oldest rows go."""
        row = Row(snapshot.time, tuple(x for device in snapshot.devices for x in _figures(device)))
        self.rows.append(row)
        while self.rows[0].time < row.time - self.span:
            self.rows.popleft()
        return row

    def pack(self, rows: Sequence[Row] | None = None) -> bytes:
        """All rows, or those given, as bytes."""
        chosen = tuple(self.rows) if rows is None else rows
        return pack(chosen, layout=self.layout, devices=len(self.uuids or ()))


def _uuids(snapshot: Snapshot) -> tuple[str | None, ...]:
    return tuple(device.uuid for device in snapshot.devices)


def _figures(device: Device) -> tuple[float, ...]:
    if device.state != "ok":
        return _UNKNOWN
    used = device.memory.used_bytes
    return _floats(device.gpu_percent, used, device.power_watts, device.temperature_celsius)


def _floats(
    gpu: float | None, used: float | None, power: float | None, celsius: float | None
) -> tuple[float, ...]:
    values = (gpu, None if used is None else used / _MIB, power, celsius)
    return tuple(math.nan if x is None or abs(x) > _FLOAT32_MAX else float(x) for x in values)


def _merge(uuids: Iterable[str | None], history: dict[str, list[Sample]], *, before: float) -> list[Row]:
    """One row for each stored instant; a device that was not stored then is unknown then."""
    order = tuple(uuids)
    instants: dict[float, dict[str, tuple[float, ...]]] = {}
    for uuid in filter(None, order):
        for sample in history.get(uuid, ()):
            if sample.time < before:
                instants.setdefault(sample.time, {})[uuid] = _floats(*sample[1:5])
    return [
        Row(time, tuple(x for uuid in order for x in instants[time].get(uuid or "", _UNKNOWN)))
        for time in sorted(instants)
    ]
