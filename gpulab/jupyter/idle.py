"""When a kernel counts as idle: pure judgement of its server's word and of a snapshot. Unknown is never idle.

A kernel rests while it runs no cell and its processes use no GPU. After a rest of `Rule.idle` seconds it
is idle; when it has been that for `Rule.grace` seconds more, in which its user could be told, it may be
reclaimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpulab.allocation.holders import lease_of
from gpulab.allocation.records import LeaseRecord
from gpulab.config import Settings
from gpulab.hardware.devices import Device, Process, Snapshot

__all__ = ["Look", "Rest", "Rule", "look_every", "rule_for", "uses_gpu"]

OLD_REST_SECONDS = 60.0
"""A lease older than `max_lease_age` is idle after so short a rest."""
MOST_GRACE_SECONDS = 600.0
"""Between the notice and the stop; less where `idle_after` itself is shorter."""
_LOOK_SECONDS = 10.0
_STALE_SECONDS = 10.0


class Rule(NamedTuple):
    """For one kernel, in seconds."""

    idle: float
    """After so long a rest it counts as idle."""
    grace: float
    """When it has been idle for so long it may be reclaimed: its user has had the time to come back."""


def rule_for(settings: Settings, age: float) -> Rule | None:
    """What holds for a kernel whose lease is `age` seconds old; None if it never counts as idle."""
    rests = [] if settings.idle_after is None else [settings.idle_after]
    if settings.max_lease_age is not None and age >= settings.max_lease_age:
        rests.append(OLD_REST_SECONDS)
    if not rests:
        return None
    return Rule(min(rests), min(MOST_GRACE_SECONDS, settings.idle_after or MOST_GRACE_SECONDS))


def look_every(settings: Settings) -> float:
    """Seconds between two looks at a server's kernels: a quarter of `idle_after`, and 10 at the most."""
    return min(_LOOK_SECONDS, (settings.idle_after or _LOOK_SECONDS * 4) / 4)


class Look(NamedTuple):
    """What is seen of a kernel at one instant."""

    execution_state: str | None
    """As the Jupyter server has it: idle, busy, starting, ..."""
    mark: object
    """Anything that is another one after each activity: a kernel may be busy between two looks."""
    uses_gpu: bool | None
    """None: not known."""

    @property
    def rests(self) -> bool:
        return self.execution_state == "idle" and self.uses_gpu is False


class Rest(NamedTuple):
    """How long a kernel rests, by a clock that never jumps; all None while it works or nobody knows."""

    since: float | None = None
    idle_from: float | None = None
    """When the rest had become so long that the kernel counts as idle."""
    mark: object = None

    def after(self, look: Look, now: float, rule: Rule | None) -> Rest:
        """What holds after a look. A rest begins when it is first seen, never in hindsight."""
        if not look.rests:
            return Rest(mark=look.mark)
        goes_on = self.since is not None and look.mark == self.mark
        since = self.since if goes_on else now
        if rule is None or now - (since or 0.0) < rule.idle:
            return Rest(since, None, look.mark)
        return Rest(since, self.idle_from if goes_on and self.idle_from is not None else now, look.mark)

    def is_reclaimable(self, now: float, rule: Rule | None) -> bool:
        """Whether the grace is over, too."""
        return rule is not None and self.idle_from is not None and now - self.idle_from >= rule.grace


def uses_gpu(
    lease: LeaseRecord, leases: Sequence[LeaseRecord], snapshot: Snapshot, now: float
) -> bool | None:
    """Whether the processes of a lease compute on its devices; None if that cannot be known.

    `leases` are all that live, `now` is the time of day in seconds since the epoch.
    """
    answers = [_uses(snapshot.device(uuid), lease, leases, now) for uuid in lease.gpus]
    if True in answers:
        return True
    return False if answers and None not in answers else None


def _uses(
    device: Device | None, lease: LeaseRecord, leases: Sequence[LeaseRecord], now: float
) -> bool | None:
    if device is None or device.state != "ok" or device.processes is None or _is_stale(device, now):
        return None
    own = [process for process in device.processes if _may_be_of(process, lease, leases)]
    shares = [process.gpu_percent for process in own]
    if any(share for share in shares):
        return True
    # Processes of another namespace may not be listed at all: their memory shows, or only their work.
    unseen = device.unlisted_bytes > 0 or (not device.processes and bool(device.gpu_percent))
    if None in shares or unseen:
        return False if device.gpu_percent == 0 else None
    return False


def _may_be_of(process: Process, lease: LeaseRecord, leases: Sequence[LeaseRecord]) -> bool:
    """Also a process that left its parents, and one that we cannot see, may work for this lease."""
    holder = lease_of(process, leases)
    if holder is not None:
        return holder == lease.id
    return process.type == "compute" and process.user in (None, lease.user)  # a desktop is nobody's work


def _is_stale(device: Device, now: float) -> bool:
    return device.sampled_at is None or abs(now - device.sampled_at) > _STALE_SECONDS
