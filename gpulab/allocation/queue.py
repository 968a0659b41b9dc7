"""The order of those who wait, and what it keeps for them: pure functions.

First come, first served within a priority, with two allowances. A request that could not be served even
if every share were given back is no reason for a share to wait. One that could be, were it not for
shares, has its devices barred, so that the shares drain from there and a stream of small ones cannot
starve it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpulab import config
from gpulab.allocation.obstacles import obstacle
from gpulab.allocation.occupancy import Occupancy, Want
from gpulab.allocation.records import LeaseRecord
from gpulab.allocation.scoring import score
from gpulab.config import Settings

if TYPE_CHECKING:
    from gpulab.allocation.policy import Request

__all__ = ["before", "gpus_held", "ordered", "suppose"]

_PRIORITIES = {"high": 0, "normal": 1, "low": 2}
_LAST = 2**63


def ordered(tickets: Iterable[LeaseRecord], settings: Settings) -> tuple[LeaseRecord, ...]:
    """The tickets in the order in which they are served, each with the priority that is believed of it.

    Anybody can write "high" into a file of their own: it counts for its owner's groups only.
    """
    believed = (ticket._replace(priority=_believed(ticket, settings)) for ticket in tickets)
    return tuple(sorted(believed, key=_place))


def before(tickets: Sequence[LeaseRecord], who: LeaseRecord | Request) -> tuple[LeaseRecord, ...]:
    """Those of the `ordered` tickets that come before `who` and answer.

    A request that has no ticket comes after all tickets of its own and of higher priorities. A ticket
    that does not answer keeps its place and is passed over.
    """
    if isinstance(who, LeaseRecord):
        own = next((_place(ticket) for ticket in tickets if ticket.id == who.id), _place(who))
    else:
        own = _PRIORITIES[who.priority], _LAST, ""
    return tuple(ticket for ticket in tickets if ticket.answers and _place(ticket) < own)


def gpus_held(leases: Iterable[LeaseRecord]) -> Counter[int | None]:
    """How many GPUs each uid holds: a share counts as its GPU."""
    held: Counter[int | None] = Counter()
    for lease in leases:
        held[lease.uid] += len(lease.gpus)
    return held


def suppose(
    ahead: Iterable[LeaseRecord], places: Iterable[Occupancy], rules: Settings, held: Counter[int | None]
) -> tuple[Occupancy, ...]:
    """A copy of the machine on which everybody in `ahead` has been served as far as possible, in order.

    Also counts in `held` what they would then hold.
    """
    later = tuple(place.copy() for place in places)
    twins = {place.uuid: place for place in later}
    for place in later:
        place.siblings = [twins[other.uuid] for other in place.siblings]
    for ticket in ahead:
        want = _want(ticket)
        allowed = rules.max_gpus_per_user
        if allowed is None or held[ticket.uid] + want.gpus <= allowed:
            held[ticket.uid] += _serve(want, later)
    return later


def _serve(want: Want, places: tuple[Occupancy, ...]) -> int:
    """Place one ticket, or bar what it waits for; how many GPUs it would get."""
    usable = [place for place in places if obstacle(place, want) is None]
    if len(usable) < want.gpus:
        return 0  # it can never be served here: nobody waits for that
    usable = [place for place in usable if not place.is_barred(want)]
    fitting = [place for place in usable if place.fits(want)]
    if len(fitting) >= want.gpus:
        for place in _best(fitting, want):
            place.take(want)
        return want.gpus
    drainable = [place for place in usable if place.would_fit(want)]
    if len(drainable) >= want.gpus:
        for place in _nearest(drainable, want):
            place.barred = True
            place.kept += 1
    elif want.exclusive:
        for place in drainable:
            place.barred_exclusive = True
            place.kept += 1
    return 0


def _best(places: list[Occupancy], want: Want) -> list[Occupancy]:
    if want.gpus == len(places) == 1:
        return places
    return sorted(places, key=lambda place: score(place, want))[: want.gpus]


def _nearest(places: list[Occupancy], want: Want) -> list[Occupancy]:
    """Those that need the least to become free: bars must stay where they are while shares drain."""

    def distance(place: Occupancy) -> tuple[bool, int, int]:
        return not place.fits(want), place.shares, place.leased

    return sorted(places, key=distance)[: want.gpus]


def _want(ticket: LeaseRecord) -> Want:
    return Want(
        gpus=ticket.count,
        memory_bytes=ticket.memory_bytes,
        exclusive=ticket.mode == "exclusive",
        policy=ticket.policy or "idlest",
        visible=None if ticket.within is None else frozenset(ticket.within),
    )


def _place(ticket: LeaseRecord) -> tuple[int, int, str]:
    return _PRIORITIES[ticket.priority], ticket.number or _LAST, ticket.id


def _believed(ticket: LeaseRecord, settings: Settings) -> str:
    if ticket.priority != "high":
        return ticket.priority
    entitled = ticket.uid is not None and config.may_raise_priority(ticket.uid, settings)
    return "high" if entitled else "normal"
