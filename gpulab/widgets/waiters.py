"""Who waits for a GPU, as the team's view shows it: place, name as the rules tell it, and for what."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from gpulab.allocation.records import LeaseRecord
from gpulab.jupyter.wording import asked

__all__ = ["describe_waiters"]

_MOST = 20


def describe_waiters(tickets: Sequence[LeaseRecord]) -> list[dict[str, Any]]:
    """The first twenty, in the order of service; the last entry counts those that are left out.

    The tickets carry names and notebooks as this process may know them (allocation.naming).
    """
    entries = [_entry(place, ticket) for place, ticket in enumerate(tickets[:_MOST], 1)]
    left = len(tickets) - len(entries)
    return [*entries, {"more": left}] if left else entries


def _entry(place: int, ticket: LeaseRecord) -> dict[str, Any]:
    return {
        "place": place,
        "who": ticket.who if ticket.user or ticket.uid is not None else "another user",
        "notebook": os.path.basename(ticket.notebook) if ticket.notebook else None,
        "for": asked(ticket.count, ticket.mode, ticket.memory_bytes),
        "priority": ticket.priority,
        "since": ticket.since or None,
        "answers": ticket.answers,
    }
