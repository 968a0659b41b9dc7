"""What a monitor shows, less the samples: put together from what the pump's feed knows."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpulab import config
from gpulab.allocation import session
from gpulab.errors import GpulabError
from gpulab.hardware import mask
from gpulab.hardware.devices import Snapshot
from gpulab.widgets import describe
from gpulab.widgets.feed import Feed
from gpulab.widgets.waiters import describe_waiters

__all__ = ["EMPTY", "Scene", "compose"]


class Scene(NamedTuple):
    """Plain values for the front end, and the snapshot that they were made of."""

    machine: dict[str, Any]
    devices: list[dict[str, Any]]
    waiting: list[dict[str, Any]]
    """Who waits for a GPU, in the order of service; in the team's view only."""
    snapshot: Snapshot | None
    age: float
    """Seconds since the snapshot was taken; infinite before the first."""


EMPTY = Scene({"trouble": "", "simulated": False}, [], [], None, float("inf"))


def compose(feed: Feed, mode: str) -> Scene:
    """The scene of a view whose mode is visible, all or team."""
    trouble = ""
    if feed.snapshot is None and not feed.sampling:
        folder = feed.settings.machine_dir
        trouble = f"GPUs cannot be sampled: {folder} cannot be written; point GPULAB_DATA_DIR elsewhere."
    team = mode == "team"
    host = config.host_name() if team else ""
    machine = describe.describe_machine(feed.snapshot, mode=mode, host=host, trouble=trouble)
    waiting = describe_waiters(feed.waiting) if team else []
    return Scene(machine, _devices(feed, mode), waiting, feed.snapshot, feed.age)


def _devices(feed: Feed, mode: str) -> list[dict[str, Any]]:
    if feed.snapshot is None:
        return []
    lease = session.current()
    return describe.describe_devices(
        feed.snapshot,
        feed.leases,
        own=None if lease is None else lease.id,
        visible=_visible(feed, feed.snapshot) if mode == "visible" else None,
        drained=feed.settings.drained,
        names=feed.settings.names,
    )


def _visible(feed: Feed, snapshot: Snapshot) -> frozenset[str] | None:
    try:
        return mask.visible_uuids(snapshot.devices, feed.settings.visible_devices, feed.settings.device_order)
    except GpulabError:
        return None  # a mask that cannot be read hides nothing here
