"""Leases: the claims that hold GPUs. A lease lives while its file is locked."""

import os
import time

from gpulab.allocation.claims import MAX_FILES_PER_OWNER, HeldClaim, examined, write_claim
from gpulab.allocation.directory import LeaseDirectory, find
from gpulab.allocation.guard import guard
from gpulab.allocation.notes import annotate
from gpulab.allocation.records import LeaseRecord
from gpulab.allocation.sweeping import sweep
from gpulab.config import Settings
from gpulab.errors import GpulabError

__all__ = [
    "MAX_FILES_PER_OWNER",
    "HeldLease",
    "LeaseRecord",
    "guard",
    "live",
    "live_leases",
    "passed_over",
    "sweep",
    "take",
]


class HeldLease(HeldClaim):
    """A lease that this process holds through an open, locked descriptor."""

    kind = "lease"

    def describe(self, *, pid: int | None = None, idle_since: float | None = None) -> None:
        """Name the process that holds it from now on, and since when that does nothing.

        Without `pid` the holder stays; without `idle_since` (seconds since the epoch) it is at work.
        Raises OSError, ValueError.
        """
        record = self.record()
        holder = record.pid or os.getpid() if pid is None else pid
        self.rewrite(record._replace(pid=holder, idle_since=idle_since))

    def annotate(self, *, kernel_id: str | None, notebook: str | None, readable: bool = False) -> None:
        """Note beside the lease what only its owner may read, or all if `readable`. Raises OSError."""
        annotate(self.directory, self.id, kernel_id=kernel_id, notebook=notebook, readable=readable)


def live(directory: LeaseDirectory, names: str | None = None) -> tuple[LeaseRecord, ...]:
    """Every lease that is held now, oldest first. Content that is not a lease is passed over.

    `names` is the administrator's rule: only "full" tells the notebooks of others.
    """
    found = (record for _, record in examined(directory, ("lease",), names) if record is not None)
    return tuple(sorted(found, key=lambda record: (record.since, record.id)))


def live_leases(settings: Settings) -> tuple[LeaseRecord, ...]:
    """`live` for those who only look: no lease where leases do not work. Never raises."""
    try:
        return live(find(settings), settings.names)
    except (GpulabError, OSError):
        return ()


def passed_over(directory: LeaseDirectory) -> int:
    """How many names of the directory look like claims in use and are not: for `gpulab doctor`."""
    return sum(record is None for _, record in examined(directory))


def take(
    directory: LeaseDirectory,
    *,
    gpus: tuple[str, ...],
    mode: str,
    memory_bytes: int | None,
    priority: str,
) -> HeldLease:
    """Write and lock a new lease. Call it under `guard`, after the check. Raises LeaseError."""
    record = LeaseRecord(
        id=os.urandom(4).hex(),
        gpus=gpus,
        mode=mode,
        memory_bytes=memory_bytes,
        priority=priority,
        pid=os.getpid(),
        since=time.time(),
        count=len(gpus),
    )
    return HeldLease(directory, record.id, write_claim(directory, "lease", record))
