"""What one scrape tells of: the newest sample with its age, the leases and the queue, at one instant."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from gpulab.allocation.directory import find
from gpulab.allocation.leases import live
from gpulab.allocation.records import LeaseRecord
from gpulab.allocation.tickets import waiting
from gpulab.config import Settings
from gpulab.errors import GpulabError
from gpulab.hardware.devices import Device, Snapshot

__all__ = ["FRESH_SECONDS", "Facts", "Labels", "clean", "labels_of", "look"]

FRESH_SECONDS = 5.0
"""An older record says nothing of now: its devices have no series then, only the age is told."""
_AHEAD_SECONDS = 1.0
_MOST_CHARACTERS = 200


class Labels(NamedTuple):
    """What names a device in each of its series; Prometheus takes an empty label for none."""

    host: str
    gpu: str
    """NVML's index; a MIG slice has its parent's."""
    uuid: str
    name: str
    parent: str
    """The UUID of the GPU that a MIG slice is of."""


class Facts(NamedTuple):
    """All that a scrape tells of, at one instant."""

    now: float
    """Seconds since the epoch."""
    host: str
    snapshot: Snapshot | None = None
    """The newest one, however old."""
    leases: tuple[LeaseRecord, ...] | None = None
    """None where the lease directory cannot be used."""
    tickets: tuple[LeaseRecord, ...] | None = None
    scope: str | None = None

    @property
    def age(self) -> float | None:
        """Seconds since the snapshot; None if there is none, or it is from a time that has yet to come."""
        if self.snapshot is None or self.snapshot.time - self.now > _AHEAD_SECONDS:
            return None
        return max(0.0, self.now - self.snapshot.time)

    @property
    def fresh(self) -> Snapshot | None:
        """The snapshot, if it tells of now."""
        return self.snapshot if self.age is not None and self.age <= FRESH_SECONDS else None


def look(settings: Settings, newest: Callable[[], Snapshot | None], host: str) -> Facts:
    """Read the record and the leases now. Never raises for what cannot be read."""
    facts = Facts(time.time(), host, newest())
    try:
        directory = find(settings)
        claims = live(directory), waiting(directory, settings._replace(names=None))
    except (GpulabError, OSError):
        return facts
    return facts._replace(leases=claims[0], tickets=claims[1], scope=directory.scope)


def clean(text: object) -> str:
    """A label's value: UTF-8 that ends no scrape early, and of a length that nobody can abuse."""
    readable = str(text).encode("utf-8", "replace").decode("utf-8")
    return readable.replace("\0", "\N{REPLACEMENT CHARACTER}")[:_MOST_CHARACTERS]


def labels_of(device: Device, host: str) -> Labels:
    """What names a device in each of its series."""
    return Labels(
        host=clean(host),
        gpu=clean(device.index),
        uuid=clean(device.uuid or ""),
        name=clean(device.name or ""),
        parent=clean(device.parent_uuid or ""),
    )
