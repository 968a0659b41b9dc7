"""Who is on each device: leases, supposed leases of those who wait, and processes that have none.

Made once for a ranking: what is read of /proc is read once, however many requests are then tried on it.
"""

from collections.abc import Iterable
from typing import NamedTuple

from gpulab.allocation.holders import Lineage
from gpulab.allocation.obstacles import closed, is_beyond, is_named
from gpulab.allocation.records import LeaseRecord
from gpulab.config import Settings
from gpulab.hardware.devices import UNLISTED_FRACTION, Device, Process, Snapshot
from gpulab.hardware.owners import sees_host_processes

__all__ = ["CONTEXT_RESERVE_BYTES", "Occupancy", "Want", "occupancies"]

CONTEXT_RESERVE_BYTES = 512 * 2**20
"""Kept free on a shared GPU for what CUDA itself needs beside the leases' memory."""


class Want(NamedTuple):
    """What a request or a ticket needs of devices, in the terms of the rules."""

    gpus: int
    memory_bytes: int | None
    exclusive: bool
    policy: str
    visible: frozenset[str] | None = None
    """UUIDs that it may be served from; None means any."""
    bound: str = "CUDA_VISIBLE_DEVICES"
    """What `visible` comes from."""
    named: frozenset[str] | None = None
    """UUIDs that its policy names; None if it names none."""


class Occupancy:
    """A device with all that is on it. `take` and the bars suppose; nothing of it is written anywhere."""

    __slots__ = (
        "barred",
        "barred_exclusive",
        "beyond_bound",
        "capacity",
        "closed",
        "device",
        "exclusive",
        "foreign",
        "foreign_bytes",
        "holders",
        "kept",
        "label",
        "leased",
        "parent",
        "shares",
        "siblings",
        "single",
        "strangers",
        "strangers_bytes",
        "used",
        "uuid",
    )

    def __init__(self, device: Device, label: str, holders: list[LeaseRecord]) -> None:
        self.device = device
        self.uuid = device.uuid or ""
        self.label = label
        self.holders = holders
        self.closed: str | None = None
        """Why it is handed out to nobody."""
        self.beyond_bound = False
        """Whether the whole of it is more than the administrator allows a lease."""
        self.single = device.compute_mode == "exclusive_process"
        """Whether CUDA admits one process to it, which is then one lease. The driver refuses that mode to a
        GPU in slices; should it report it all the same, it holds for each slice."""
        self.parent: Device | None = None
        self.siblings: list[Occupancy] = []
        """The other slices of the same GPU."""
        self.capacity = _capacity(device)
        self.used = device.memory.used_bytes or 0
        self.exclusive = any(lease.mode == "exclusive" for lease in holders)
        self.shares = sum(lease.mode != "exclusive" for lease in holders)
        self.leased = sum(lease.memory_bytes or 0 for lease in holders)
        self.strangers: tuple[Process, ...] = ()
        """Processes that certainly belong to no lease."""
        self.strangers_bytes = 0
        self.foreign = False
        """Whether somebody without a lease computes on it."""
        self.foreign_bytes = 0
        """What would be in use if all shares were given back."""
        self.kept = 0
        """How many waiting requests count on it."""
        self.barred = False
        self.barred_exclusive = False

    def copy(self) -> "Occupancy":
        twin = object.__new__(Occupancy)
        for name in Occupancy.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin

    @property
    def left(self) -> int:
        """Bytes that may still be leased: strangers on top of the leases, but no process counted twice."""
        return self.capacity - max(self.leased + self.strangers_bytes, self.used)

    def fits(self, want: Want) -> bool:
        """Whether there is room now; `obstacle` says whether it is at all for this want."""
        if self.exclusive:
            return False
        if want.exclusive or self.single:
            return not (self.shares or self.foreign)
        return self.left >= (want.memory_bytes or 0)

    def would_fit(self, want: Want) -> bool:
        """Whether there would be room if nobody had a share of it."""
        if self.exclusive:
            return False
        if want.exclusive or self.single:
            return not self.foreign
        return self.capacity - self.foreign_bytes >= (want.memory_bytes or 0)

    def is_barred(self, want: Want) -> bool:
        return self.barred or (want.exclusive and self.barred_exclusive)

    def take(self, want: Want) -> None:
        """Suppose a lease for `want` on it."""
        self.kept += 1
        if want.exclusive:
            self.exclusive = True
        else:
            self.shares += 1
            self.leased += want.memory_bytes or 0


def occupancies(snapshot: Snapshot, leases: Iterable[LeaseRecord], rules: Settings) -> tuple[Occupancy, ...]:
    """One for each device, in the snapshot's order, within what the administrator lets be handed out."""
    holders: dict[str, list[LeaseRecord]] = {}
    for lease in leases:
        for gpu in lease.gpus:
            holders.setdefault(gpu, []).append(lease)
    places = tuple(
        Occupancy(device, label, holders.get(device.uuid or "", []))
        for device, label in zip(snapshot.devices, _labels(snapshot.devices), strict=True)
    )
    _relate(places)
    # Where process numbers are another machine's, a process that we cannot see may be a lease's own.
    lineage = Lineage(sees_all=snapshot.simulated or sees_host_processes())
    rules = _meant(snapshot, rules)
    parents = {place.device.parent_uuid for place in places}
    for place in places:
        place.closed = closed(place.device, rules, is_parent=place.device.uuid in parents)
        place.beyond_bound = is_beyond(place.device, rules.max_memory_per_lease)
        if not place.closed and not place.exclusive:
            _find_strangers(place, lineage)
    return places


def _meant(snapshot: Snapshot, rules: Settings) -> Settings:
    """The rules for this machine: a list of the real one's devices is not meant for a simulated one."""
    if not (snapshot.simulated and rules.devices):
        return rules
    named = any(is_named(device, rules.devices) for device in snapshot.devices)
    return rules if named else rules._replace(devices=None)


def _capacity(device: Device) -> int:
    total = device.memory.total_bytes or 0
    return total - (device.memory.reserved_bytes or 0) - CONTEXT_RESERVE_BYTES


def _find_strangers(place: Occupancy, lineage: Lineage) -> None:
    device = place.device
    place.strangers = lineage.strangers(device, place.holders)
    place.strangers_bytes = sum(process.memory_bytes or 0 for process in place.strangers)
    place.foreign_bytes = max(place.strangers_bytes, place.used - place.leased)
    computes = any(process.type == "compute" for process in place.strangers)
    place.foreign = computes or bool(_unlisted(place))


def _unlisted(place: Occupancy) -> bool:
    """Whether memory is in use that neither a listed process nor a lease accounts for."""
    device, total = place.device, place.device.memory.total_bytes
    if device.processes is not None:
        return not place.holders and device.unlisted_bytes > 0
    if device.memory.used_bytes is None or total is None:
        return True
    return place.used - place.leased > UNLISTED_FRACTION * total


def _relate(places: tuple[Occupancy, ...]) -> None:
    by_parent: dict[str, list[Occupancy]] = {}
    for place in places:
        if place.device.parent_uuid:
            by_parent.setdefault(place.device.parent_uuid, []).append(place)
    for place in places:
        for part in by_parent.get(place.uuid, ()):
            part.parent = place.device
    for parts in by_parent.values():
        for part in parts:
            part.siblings = [other for other in parts if other is not part]


def _labels(devices: Iterable[Device]) -> list[str]:
    """The index; slices of GPU 0 are 0.0, 0.1 and so on."""
    labels: list[str] = []
    slices: dict[int, int] = {}
    for device in devices:
        place = slices.get(device.index, 0)
        if device.kind == "mig":
            slices[device.index] = place + 1
        labels.append(f"{device.index}.{place}" if device.kind == "mig" else str(device.index))
    return labels
