"""What a request is granted: a Lease, after a ranking of the devices against the claims of this instant."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from gpulab import config
from gpulab.allocation.directory import LeaseDirectory, find
from gpulab.allocation.guard import guard
from gpulab.allocation.leases import HeldLease, live, take
from gpulab.allocation.policy import Candidate, Request, choose, rank
from gpulab.allocation.queue import before
from gpulab.allocation.records import LeaseRecord
from gpulab.allocation.sweeping import sweep
from gpulab.config import Settings
from gpulab.errors import LeaseError, NoFreeGpuError, NoGpuError
from gpulab.hardware.devices import Snapshot
from gpulab.hardware.mask import bounds

if TYPE_CHECKING:
    from gpulab.allocation.tickets import HeldTicket

__all__ = ["Lease", "answering", "grant", "ranking", "turn"]


class Lease:
    """GPUs of one's own, until `release()` or the end of the process; also a context manager."""

    def __init__(self, record: LeaseRecord, held: HeldLease | None) -> None:
        self.id = record.id
        self.gpus = record.gpus
        """Full UUIDs."""
        self.mode = record.mode
        """exclusive or shared"""
        self.memory_bytes = record.memory_bytes
        """The share in bytes; None for a whole GPU without a cap."""
        self.since = record.since
        """Seconds since the epoch."""
        self.total_bytes: int | None = None
        """Memory of the smallest of its devices; None if this process was not told."""
        self.devices: str | None = None
        """The devices' names, for people; None if this process was not told."""
        self.reason: str | None = None
        """Why just these were chosen, for people."""
        self.held = held
        """The locked descriptor; None where a parent process holds the lease for this one."""
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<Lease {self.id}: {', '.join(self.gpus)} ({self.mode})>"

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def environment(
        self, settings: Settings | None = None, environ: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """What a process needs in its environment to use this lease and nothing else.

        `settings` are those the lease was taken with, `environ` is what the answer will be added to;
        without them, those of this process.
        """
        from gpulab import limits

        variables = {
            **limits.variables(self.memory_bytes, self.total_bytes, environ),
            **config.masked(",".join(self.gpus), config.unruled() if settings is None else settings),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "GPULAB_LEASE": self.id,
        }
        if self.memory_bytes is not None:
            variables["GPULAB_MEMORY_LIMIT"] = str(self.memory_bytes)
        if self.devices and self.reason:
            variables.update(GPULAB_LEASE_DEVICES=self.devices, GPULAB_LEASE_REASON=self.reason)
        return variables

    def is_held(self) -> bool:
        """Whether the lease still lives."""
        return self.held is not None and self.held.is_held()

    def release(self) -> None:
        """Give the GPUs back. Twice is fine.

        Raises LeaseError if this is not the holder's process, or if it has started CUDA: then the
        GPU stays in use until the process ends, whatever gpulab says.
        """
        from gpulab.allocation import session

        if self.held is None or os.getpid() != self._pid:
            raise LeaseError(
                f"Lease {self.id} belongs to another process (this one is {os.getpid()}); release it there."
            )
        using = session.cuda_started(self.gpus) if self.is_held() else False
        if using is not False:
            raise LeaseError(
                "This process is using its GPU, so the GPU cannot be given back while it lives; "
                "restart or shut down the kernel."
                if using
                else "This process has loaded CUDA, and the driver does not say now whether it uses its GPU, "
                "as in a pause and just after one; try again in a few seconds, or restart the kernel."
            )
        self.held.give_up()
        session.detach(self)


def answering(snapshot: Snapshot) -> None:
    """See that the driver answers. Raises NoGpuError; NoFreeGpuError where that will pass by itself."""
    if not snapshot.driver.ok:
        kind = NoFreeGpuError if snapshot.driver.state == "paused" else NoGpuError
        raise kind(snapshot.driver.message)


def grant(request: Request, snapshot: Snapshot, settings: Settings, *, prefer: tuple[str, ...] = ()) -> Lease:
    """Try once, after all who wait: rank what the snapshot shows against the claims of this instant.

    Raises RequestError, NoGpuError, NoFreeGpuError, LeaseDirectoryError or LeaseError.
    """
    request = request.applied(settings)._replace(prefer=prefer)
    answering(snapshot)
    directory = find(settings)
    bounds(snapshot.devices, settings)  # may ask CUDA, and remembers: not under the guard
    with guard(directory):
        candidates = ranking(request, snapshot, _tidied(directory, settings), settings)
        chosen = _chosen(candidates, request)
        held = take(
            directory,
            gpus=_uuids(chosen),
            mode=request.mode,
            memory_bytes=request.memory_bytes,
            priority=request.priority,
        )
    return _lease(held, chosen)


def turn(ticket: HeldTicket, request: Request, snapshot: Snapshot, settings: Settings) -> Lease:
    """`grant` for one who waits, after those before it only: its ticket becomes the lease.

    Raises NoGpuError, NoFreeGpuError, LeaseDirectoryError or LeaseError; then it still waits.
    """
    bounds(snapshot.devices, settings)  # as in `grant`
    with guard(ticket.directory):
        if not ticket.is_held():
            raise LeaseError("This request waits no longer: its place was given up; ask again.")
        leases = _tidied(ticket.directory, settings)
        candidates = ranking(request, snapshot, leases, settings, ticket=ticket)
        chosen = _chosen(candidates, request)
        held = ticket.become_lease(_uuids(chosen))
    return _lease(held, chosen)


def _tidied(directory: LeaseDirectory, settings: Settings) -> tuple[LeaseRecord, ...]:
    """The live leases, after the dead files were removed. Call it under `guard`."""
    leases = live(directory, settings.names)
    return live(directory, settings.names) if sweep(directory, leases) else leases


def ranking(
    request: Request,
    snapshot: Snapshot,
    leases: tuple[LeaseRecord, ...],
    settings: Settings,
    *,
    ticket: HeldTicket | None = None,
) -> tuple[Candidate, ...]:
    """Every device with its place and reason, within the mask, the rules and what others wait for.

    Raises RequestError if the mask cannot be read.
    """
    mask = bounds(snapshot.devices, settings)
    ahead = _ahead(request, settings, ticket)
    return rank(snapshot, leases, request._replace(visible=mask), settings, ahead)


def _ahead(request: Request, settings: Settings, ticket: HeldTicket | None) -> tuple[LeaseRecord, ...]:
    """Who is served before this request, of those whose process would take its turn."""
    directory = find(settings) if ticket is None else ticket.directory
    if not directory.names("ticket-"):
        return ()  # as on most days: nobody waits
    from gpulab.allocation.tickets import waiting

    tickets = waiting(directory, settings)
    own = None if ticket is None else next((other for other in tickets if other.id == ticket.id), None)
    return before(tickets, request if own is None else own)


def _chosen(candidates: tuple[Candidate, ...], request: Request) -> tuple[Candidate, ...]:
    devices = choose(candidates, request)
    return tuple(candidate for candidate in candidates if candidate.device in devices)


def _uuids(chosen: tuple[Candidate, ...]) -> tuple[str, ...]:
    return tuple(candidate.device.uuid or "" for candidate in chosen)


def _lease(held: HeldLease, chosen: tuple[Candidate, ...]) -> Lease:
    lease = Lease(held.record(), held)
    sizes = [candidate.device.memory.total_bytes for candidate in chosen]
    lease.total_bytes = None if None in sizes else min(size for size in sizes if size is not None)
    lease.devices = ", ".join(candidate.device.name or "unnamed GPU" for candidate in chosen)
    lease.reason = "; ".join(candidate.reason for candidate in chosen)
    return lease
