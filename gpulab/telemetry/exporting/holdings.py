"""The metrics of leases and of the queue; holders are called only as the rule `names` lets everybody know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gpulab.allocation.naming import HIDDEN, public_login
from gpulab.allocation.records import LeaseRecord
from gpulab.allocation.status import holding_state
from gpulab.config import Settings
from gpulab.telemetry.exporting.facts import Facts, Labels, clean
from gpulab.telemetry.exporting.families import gauge

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["claims"]

_LEASE_STATES = ("active", "idle", "reclaimable")
_PRIORITIES = ("low", "normal", "high")


def claims(facts: Facts, known: Mapping[str, Labels], settings: Settings) -> Iterator[Metric]:
    """The leases of the known devices by user, and who waits; nothing where leases cannot be read.

    A lease that names none of them is of another machine, as a simulated one beside the real one.
    """
    if facts.leases is None or facts.tickets is None:
        return
    host = clean(facts.host)
    ours = [lease for lease in facts.leases if not known or not known.keys().isdisjoint(lease.gpus)]
    counted = Counter(holding_state(lease, settings) for lease in ours)
    leases = gauge("gpulab_leases", "Live leases by what their holders do.", ("host", "state"))
    for state in dict.fromkeys((*_LEASE_STATES, *counted)):
        leases.add_metric((host, clean(state)), counted[state])
    yield leases
    yield from _held(ours, known, settings)
    yield from _queue(facts.tickets, host, facts.now)


def _held(leases: list[LeaseRecord], known: Mapping[str, Labels], settings: Settings) -> Iterator[Metric]:
    held: Counter[tuple[str, ...]] = Counter()
    shares: Counter[tuple[str, ...]] = Counter()
    for lease in leases:
        who = _user(lease, settings.names)
        for labels in (known[uuid] for uuid in lease.gpus if uuid in known):
            held[*labels, who, lease.mode, holding_state(lease, settings)] += 1
            if lease.memory_bytes is not None:
                shares[*labels, who, lease.mode] += lease.memory_bytes
    count = gauge(
        "gpulab_device_leases",
        "Live leases of the device by holder.",
        (*Labels._fields, "user", "mode", "state"),
    )
    size = gauge(
        "gpulab_device_lease_memory_bytes",
        "Memory of the device that leases set aside, by holder.",
        (*Labels._fields, "user", "mode"),
    )
    for family, found in ((count, held), (size, shares)):
        for values, number in found.items():
            family.add_metric(values, float(number))
        yield family


def _queue(tickets: tuple[LeaseRecord, ...], host: str, now: float) -> Iterator[Metric]:
    waiters = gauge("gpulab_waiters", "Requests that wait for a GPU.", ("host", "priority"))
    longest = gauge("gpulab_longest_wait_seconds", "How long the oldest of them waits.", ("host", "priority"))
    for priority in _PRIORITIES:
        since = [ticket.since for ticket in tickets if ticket.priority == priority]
        waiters.add_metric((host, priority), len(since))
        if since:
            longest.add_metric((host, priority), max(0.0, now - min(since)))
    yield waiters
    yield longest


def _user(lease: LeaseRecord, names: str | None) -> str:
    """Whoever scrapes is nobody in particular: the rule holds for all, also where root runs the exporter."""
    shown = public_login(lease.user or f"uid {lease.uid}", names)
    return "" if shown == HIDDEN else clean(shown)
