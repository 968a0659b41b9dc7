"""Tickets: the claims that wait. A ticket becomes a lease in one step, and keeps its id and its lock."""

import contextlib
import os
import time

from gpulab.allocation.claims import HeldClaim, claim_name, examined, write_claim
from gpulab.allocation.directory import LeaseDirectory, find
from gpulab.allocation.leases import HeldLease
from gpulab.allocation.queue import ordered
from gpulab.allocation.records import LeaseRecord
from gpulab.allocation.requests import Request
from gpulab.config import Settings
from gpulab.errors import GpulabError, LeaseError, NoFreeGpuError

__all__ = ["MAX_TICKETS_PER_OWNER", "HeldTicket", "draw", "live_tickets", "waiting", "waiting_now"]

MAX_TICKETS_PER_OWNER = 128
"""How many requests of one account stand in the queue; what it adds beyond that is not seen."""
_BEAT_SECONDS = 0.5
_MAX_NUMBER = 2**40
"""Whoever writes a larger number gains nothing, and leaves room for those who come after."""


class HeldTicket(HeldClaim):
    """A place in the queue that this process holds through an open, locked descriptor."""

    kind = "ticket"

    def __init__(self, directory: LeaseDirectory, claim_id: str, fd: int, number: int) -> None:
        super().__init__(directory, claim_id, fd)
        self.number = number
        self.watch: object | None = None
        """What `waiting.attempt` remembers between two looks."""
        self.lease: HeldLease | None = None
        """What it has become."""
        self._beaten = 0.0

    def beat(self) -> None:
        """Show that this process would take its turn. Costs nothing if it has just done so."""
        now = time.monotonic()
        if self.fd >= 0 and now - self._beaten >= _BEAT_SECONDS:
            with contextlib.suppress(OSError):
                os.utime(self.fd)
            self._beaten = now

    def describe(self, *, pid: int) -> None:
        """Name the process that waits from now on. Raises OSError, ValueError."""
        self.rewrite(self.record()._replace(pid=pid))

    def request(self) -> Request:
        """What it asks for, read back from its text. Raises OSError, ValueError."""
        record = self.record()
        return Request(
            gpus=record.count,
            memory_bytes=record.memory_bytes,
            exclusive=record.mode == "exclusive",
            policy=record.policy or "idlest",
            priority=record.priority,
            visible=None if record.within is None else frozenset(record.within),
        )

    def become_lease(self, gpus: tuple[str, ...]) -> HeldLease:
        """Turn it into a lease on `gpus`: same file, same lock. Call it under `guard`, after the check.

        Raises LeaseError; then it still waits.
        """
        lease_id = self._free_id()
        record = self.record()
        granted = record._replace(id=lease_id, gpus=gpus, within=None, pid=record.pid or os.getpid())
        try:
            # The text first: until the name changes it is read as a ticket's.
            self.rewrite(granted._replace(since=time.time()))
            os.rename(self.path, os.path.join(self.directory.path, claim_name("lease", lease_id)))
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError, ValueError):
                self.rewrite(record)
            raise LeaseError(
                f"The ticket in {self.directory.path} could not become a lease ({error}); "
                "run `gpulab doctor` to see what that directory lacks."
            ) from error
        self.lease = HeldLease(self.directory, lease_id, self.fd)
        self.fd = -1
        return self.lease

    def granted(self) -> HeldLease | None:
        """The lease that one who shares the descriptor has made of it, now through this object's descriptor.

        None if there is none.
        """
        if self.fd < 0:
            return self.lease
        ours = [claim_name("lease", self.id), *self.directory.names("lease-")]
        with contextlib.suppress(OSError):
            status = os.fstat(self.fd)
            for name in ours:
                with contextlib.suppress(OSError):
                    if os.path.samestat(status, os.stat(os.path.join(self.directory.path, name))):
                        self.lease = HeldLease(self.directory, name.removeprefix("lease-"), self.fd)
                        self.fd = -1
                        return self.lease
        return None

    def give_up(self) -> None:
        """End it at once, also for those who share the descriptor, and also if it is a lease by now."""
        lease = None if self.is_held() else self.granted()
        if lease is None:
            super().give_up()
        else:
            lease.give_up()

    def _free_id(self) -> str:
        """Its own id; another one if some account has put a file where the lease would lie."""
        taken = os.path.lexists(os.path.join(self.directory.path, claim_name("lease", self.id)))
        return os.urandom(4).hex() if taken else self.id


def live_tickets(directory: LeaseDirectory, names: str | None = None) -> tuple[LeaseRecord, ...]:
    """Every ticket that waits now, in the order drawn; of each owner the first so many only."""
    found = [record for _, record in examined(directory, ("ticket",), names) if record is not None]
    return _bounded(sorted(found, key=lambda record: (record.number or 0, record.since, record.id)))


def waiting(directory: LeaseDirectory, settings: Settings) -> tuple[LeaseRecord, ...]:
    """The live tickets in the order in which they are served, those that do not answer included."""
    return ordered(live_tickets(directory, settings.names), settings)


def waiting_now(settings: Settings) -> tuple[LeaseRecord, ...]:
    """`waiting` for those who only look: nobody where leases do not work. Never raises."""
    try:
        return waiting(find(settings), settings)
    except (GpulabError, OSError):
        return ()


def draw(directory: LeaseDirectory, request: Request, *, within: tuple[str, ...] | None) -> HeldTicket:
    """Draw the next number. Call it under `guard`. Raises LeaseError, and NoFreeGpuError past the bound."""
    standing = live_tickets(directory)
    if sum(record.uid == os.getuid() for record in standing) >= MAX_TICKETS_PER_OWNER:
        raise NoFreeGpuError(
            f"{MAX_TICKETS_PER_OWNER} requests of this account wait already; end some of them first."
        )
    record = LeaseRecord(
        id=os.urandom(4).hex(),
        gpus=(),
        mode=request.mode,
        memory_bytes=request.memory_bytes,
        priority=request.priority,
        pid=os.getpid(),
        since=time.time(),
        number=1 + max((min(record.number or 0, _MAX_NUMBER) for record in standing), default=0),
        count=request.gpus,
        within=within,
        policy=request.policy,
    )
    fd = write_claim(directory, "ticket", record)
    return HeldTicket(directory, record.id, fd, record.number or 1)


def _bounded(records: list[LeaseRecord]) -> tuple[LeaseRecord, ...]:
    kept: list[LeaseRecord] = []
    seen: dict[int | None, int] = {}
    for record in records:
        seen[record.uid] = seen.get(record.uid, 0) + 1
        if seen[record.uid] <= MAX_TICKETS_PER_OWNER:
            kept.append(record)
    return tuple(kept)
