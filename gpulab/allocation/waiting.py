"""Waiting for a GPU: a ticket in the queue, looked after until it becomes a lease.

Whoever waits asks cheap questions of the lease directory often, and the driver seldom.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable

from gpulab import config
from gpulab.allocation.directory import find
from gpulab.allocation.grants import Lease, answering, grant, turn
from gpulab.allocation.guard import guard
from gpulab.allocation.policy import Request
from gpulab.allocation.sweeping import sweep
from gpulab.allocation.tickets import HeldTicket, draw, waiting
from gpulab.allocation.watch import Standing, Watch
from gpulab.config import Settings
from gpulab.errors import ConfigError, LeaseDirectoryError, LeaseError, NoFreeGpuError, NoGpuError
from gpulab.hardware.devices import Snapshot
from gpulab.hardware.mask import bounds
from gpulab.units import format_duration

__all__ = [
    "Standing",
    "adopt_ticket",
    "attempt",
    "enqueue",
    "stand",
    "standing",
    "wait_for_grant",
    "why_not",
]

_RELOAD_SECONDS = 2.0
_REFUSED_SECONDS = 2.0
_PATIENCE_SECONDS = 60.0
"""For a driver that restarts or hangs, or a guard that is held: no reason to lose one's place at once."""
_MAX_WITHIN = 64
_GONE = "This request waits no longer: its place was given up; ask again."


def enqueue(request: Request, settings: Settings, snapshot: Snapshot | None = None) -> HeldTicket:
    """Draw a ticket for a request; the caller has seen that it can be served on this machine.

    With a `snapshot` the ticket also says from which devices it may be served, so that others need not
    wait for it elsewhere. Raises RequestError, LeaseError, and NoFreeGpuError if this account has too many.
    """
    request = request.applied(settings)
    directory = find(settings)
    within = _within(request, settings, snapshot)
    with guard(directory):
        sweep(directory)
        return draw(directory, request, within=within)


def standing(ticket: HeldTicket, settings: Settings) -> Standing:
    """The place of a ticket among all who wait now. Asks no driver. Raises LeaseError."""
    tickets = waiting(ticket.directory, settings)
    position = next((place for place, other in enumerate(tickets, 1) if other.id == ticket.id), None)
    if position is None:
        raise LeaseError(_GONE)
    return Standing((position, len(tickets)))


def why_not(ticket: HeldTicket) -> str:
    """Why it was not served at its last look; empty if it has had none."""
    return ticket.watch.reason if isinstance(ticket.watch, Watch) else ""


def attempt(
    ticket: HeldTicket, request: Request, settings: Settings, look: Callable[[], Snapshot]
) -> Lease | None:
    """Take the turn of a ticket if it has come: its lease, or None while it must wait on.

    Call it often: it shows the others that this process would take its turn, and looks at the GPUs only
    if something has changed since the last call, or after a while.

    Raises NoGpuError once this machine has for two seconds been unable ever to serve it (a GPU was
    drained or lost), or its driver has failed for a minute; LeaseError if its place was given up;
    LeaseDirectoryError; RequestError.
    """
    if not ticket.is_held():
        return _granted(ticket)
    ticket.beat()
    watch = _watch(ticket, settings)
    try:
        if not watch.is_due():
            return None
    except OSError as error:
        raise LeaseDirectoryError(
            f"The lease directory {ticket.directory.path} cannot be read any more ({error.strerror}); "
            "run `gpulab doctor`."
        ) from error
    with watch.looking():
        snapshot = look()
        try:
            answering(snapshot)
            _narrow(ticket, request, settings, snapshot)
            return turn(ticket, request.applied(settings), snapshot, settings)
        except NoFreeGpuError as error:
            watch.served_not(str(error))
        except NoGpuError as error:
            if watch.is_impossible(_REFUSED_SECONDS if snapshot.driver.ok else _PATIENCE_SECONDS):
                raise
            watch.reason = str(error)
    return None


def _watch(ticket: HeldTicket, settings: Settings, reason: str = "") -> Watch:
    if not isinstance(ticket.watch, Watch):
        ticket.watch = Watch(ticket, settings, reason)
    return ticket.watch


def _granted(ticket: HeldTicket) -> Lease:
    """The lease that one who shares the descriptor has made of it. Raises LeaseError if there is none."""
    held = ticket.granted()
    if held is None:
        raise LeaseError(_GONE)
    return Lease(held.record(), held)


def adopt_ticket(settings: Settings) -> HeldTicket | None:
    """Take over the ticket that GPULAB_TICKET and GPULAB_TICKET_FD name, as `session.adopt` does a lease.

    The inherited descriptor becomes close-on-exec and is closed in forked children.
    """
    if settings.ticket_id is None or settings.ticket_fd is None:
        return None
    ticket = HeldTicket(find(settings), settings.ticket_id, settings.ticket_fd, 0)
    try:
        if not ticket.is_held():
            ticket.fd = -1  # somebody else's descriptor by now: not ours to close
            return None
        ticket.number = ticket.record().number or 0
        os.set_inheritable(ticket.fd, False)
    except (OSError, ValueError):
        ticket.fd = -1
        return None
    return ticket


def wait_for_grant(
    request: Request,
    settings: Settings,
    look: Callable[[], Snapshot],
    seconds: float | None,
    tell: Callable[[Standing, str], None] | None = None,
) -> Lease:
    """Take GPUs now, or wait in the queue for up to `seconds` (0: not at all; None: without limit).

    `tell` is called again and again meanwhile, with the place and with why it is not served.

    Raises RequestError, NoGpuError, NoFreeGpuError after `seconds`, LeaseDirectoryError, LeaseError.
    """
    snapshot = look()
    try:
        return grant(request, snapshot, settings)
    except NoFreeGpuError as error:
        if seconds is not None and seconds <= 0:
            raise
        reason = str(error)
    ticket = enqueue(request, settings, snapshot)
    return stand(ticket, request, settings, look, seconds=seconds, tell=tell, reason=reason)


def stand(
    ticket: HeldTicket,
    request: Request,
    settings: Settings,
    look: Callable[[], Snapshot],
    *,
    seconds: float | None = None,
    tell: Callable[[Standing, str], None] | None = None,
    reason: str = "",
) -> Lease:
    """Wait with a ticket until it becomes a lease; it is given up if anything else comes of it.

    `reason` says why it was not served so far. The other parameters and errors are as in `wait_for_grant`.
    """
    try:
        _watch(ticket, settings, reason)
        return _wait(ticket, request, settings, look, seconds=seconds, tell=tell)
    except BaseException:  # also Ctrl-C: whoever is gone must not keep a place, nor what it was just given
        (ticket.lease or ticket).give_up()
        raise


def _wait(
    ticket: HeldTicket,
    request: Request,
    settings: Settings,
    look: Callable[[], Snapshot],
    *,
    seconds: float | None,
    tell: Callable[[Standing, str], None] | None,
) -> Lease:
    watch = _watch(ticket, settings)
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    loaded = useful = time.monotonic()
    while True:
        lease, now = None, time.monotonic()
        try:
            lease = attempt(ticket, request, settings, look)
            useful = now
        except LeaseDirectoryError:
            if now - useful > _PATIENCE_SECONDS:
                raise
        if lease is not None:
            return lease
        if now >= deadline:
            raise NoFreeGpuError(_expired(watch, seconds or 0))
        if tell is not None:
            tell(watch.standing, watch.reason)
        if now - loaded >= _RELOAD_SECONDS:
            settings, loaded = _reloaded(settings), now
        time.sleep(min(deadline - now, watch.pause()))


def _expired(watch: Watch, seconds: float) -> str:
    place, total = watch.standing
    return f"After {format_duration(seconds)} of waiting, at place {place} of {total}: {watch.reason}"


def _reloaded(settings: Settings) -> Settings:
    """The administrator's rules of now: one who waits for hours hears of a GPU that was drained."""
    try:
        now = config.load()
    except ConfigError:
        return settings  # a file that is being edited
    return settings._replace(
        devices=now.devices,
        drained=now.drained,
        max_gpus_per_user=now.max_gpus_per_user,
        max_memory_per_lease=now.max_memory_per_lease,
        who_may_raise_priority=now.who_may_raise_priority,
        names=now.names,
    )


def _narrow(ticket: HeldTicket, request: Request, settings: Settings, snapshot: Snapshot) -> None:
    """Say from which devices it may be served, if no driver answered when it was drawn."""
    with contextlib.suppress(OSError, ValueError):
        within = None if ticket.record().within is not None else _within(request, settings, snapshot)
        if within is not None:
            with guard(ticket.directory):
                if ticket.is_held():
                    ticket.rewrite(ticket.record()._replace(within=within))


def _within(request: Request, settings: Settings, snapshot: Snapshot | None) -> tuple[str, ...] | None:
    """The devices that the mask and the policy leave; None where they leave all, or more than fit.

    While no driver answers it is all: of a ticket for none, nobody would think that it is before him.
    """
    if snapshot is None or not snapshot.driver.ok:
        allowed: Iterable[str] | None = request.visible
    else:
        mask = bounds(snapshot.devices, settings)
        allowed = request._replace(visible=mask).within(snapshot.devices)
    uuids = None if allowed is None else tuple(sorted(allowed))
    return None if uuids is None or len(uuids) > _MAX_WITHIN else uuids
