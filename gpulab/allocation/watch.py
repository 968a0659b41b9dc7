"""What one who waits remembers between two looks, so that it seldom asks the driver and is still quick."""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Iterator

from gpulab.allocation.claims import ANSWER_SECONDS, claim_name, is_locked, open_claim
from gpulab.allocation.directory import LeaseDirectory
from gpulab.allocation.tickets import HeldTicket, waiting
from gpulab.config import Settings

__all__ = ["Standing", "Watch"]

_FRONT_SECONDS = 2.0
_BEHIND_SECONDS = 10.0
"""After so long the GPUs are looked at though no claim has changed: colleagues without gpulab come and go."""
_SETTLE_SECONDS = 0.1
"""The driver may list a lease's processes for a moment after its end: then the first look is too early."""
_SHARE_OF_TIME = 250.0
"""What takes t seconds is done again after 250 t at the earliest: a waiter costs below 1 % of a core."""
_COUNT_SECONDS = 0.5
_READ_SECONDS = 5.0
"""Names are counted often; who of them is dead, or came before us by priority, is read less often."""
_TICK_NS = 20_000_000
"""Directories are dated by a clock that ticks no faster: what changes within one tick looks unchanged."""


class Standing(tuple[int, int]):
    """A place in the queue, counted from 1, and how many wait."""

    __slots__ = ()

    @property
    def position(self) -> int:
        return self[0]

    @property
    def total(self) -> int:
        return self[1]


class _Leases:
    """Which leases live, told by names and locks alone."""

    def __init__(self, directory: LeaseDirectory) -> None:
        self._directory = directory
        self._dated: int | None = None
        self._listed: set[str] = set()
        self._live: set[str] = set()

    def have_changed(self) -> bool:
        """Whether a lease began or ended since the last call."""
        before, names = self._live, self._names()
        candidates = {name for name in names if name in before or name not in self._listed}
        self._live = {name for name in candidates if self._lives(name)}
        self._listed = names
        return self._live != before

    def _names(self) -> set[str]:
        dated = os.stat(self._directory.path).st_mtime_ns
        if dated == self._dated:
            return self._listed
        self._dated = dated if time.time_ns() - dated > _TICK_NS else None
        return set(self._directory.names("lease-"))

    def _lives(self, name: str) -> bool:
        fd = open_claim(self._directory, name)
        if fd is None:
            return False
        try:
            return is_locked(fd)
        finally:
            os.close(fd)


class Watch:
    """Decides when a ticket's turn may have come."""

    def __init__(self, ticket: HeldTicket, settings: Settings, reason: str = "") -> None:
        self.reason = reason
        """Why it was not served at the last look."""
        self._ticket = ticket
        self._settings = settings
        self._leases = _Leases(ticket.directory)
        self._own = claim_name("ticket", ticket.id)
        self._queue: list[str] = []
        """The names of the tickets, this one's included, in the order in which they are served."""
        self._counted = self._read_at = -math.inf
        self._reading = 0.0
        self._tested, self._testing = -math.inf, 0.0
        self._looked, self._looking = -math.inf, 0.0
        self._settle = _SETTLE_SECONDS
        self._changed = True
        self._is_front = False
        self._impossible_since: float | None = None

    @property
    def standing(self) -> Standing:
        return Standing((len(self._ahead()) + 1, max(1, len(self._queue))))

    def is_due(self) -> bool:
        """Whether to look at the GPUs now."""
        now = time.monotonic()
        self._count(now)
        self._is_front = not self._somebody_before()
        if self._is_front or now - self._tested >= 1.0:
            self._test(now)
        since = now - self._looked
        if self._is_front:
            return self._changed or since >= self._calm()
        rest = max(0.25, self._looking * _SHARE_OF_TIME)
        return (self._changed and since >= rest) or since >= max(_BEHIND_SECONDS, rest)

    def _calm(self) -> float:
        """Seconds between two looks at the front: few after a change, then as the cost of a look allows."""
        settled = self._settle >= _FRONT_SECONDS
        return max(self._settle, 2 * self._looking * _SHARE_OF_TIME) if settled else self._settle

    def pause(self) -> float:
        """Seconds until the next question; a little random, so that many do not ask at once."""
        calm = 0.04 if self._is_front else 0.1 if len(self._ahead()) < 8 else 0.25
        most = 0.1 if self._is_front else 0.75  # well below what makes a ticket look unanswering
        return min(most, max(calm, self._testing * _SHARE_OF_TIME)) * random.uniform(0.8, 1.2)

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Around a look at the GPUs."""
        begun = time.monotonic()
        self._changed = False
        try:
            yield
        finally:
            self._looked = time.monotonic()
            self._looking = self._looked - begun
            self._settle = min(_FRONT_SECONDS, 2 * self._settle)

    def served_not(self, reason: str) -> None:
        """Note why the look led to nothing."""
        self.reason, self._impossible_since = reason, None

    def is_impossible(self, after: float) -> bool:
        """Whether the machine has refused it for good: for `after` seconds, and not for a moment only."""
        now = time.monotonic()
        if self._impossible_since is None:
            self._impossible_since = now
        return now - self._impossible_since >= after

    def _ahead(self) -> list[str]:
        return self._queue[: self._queue.index(self._own)] if self._own in self._queue else []

    def _count(self, now: float) -> None:
        """Bring the queue up to date: by its names, and from time to time by what its tickets say."""
        if now - self._counted < _COUNT_SECONDS:
            return
        names = set(self._ticket.directory.names("ticket-"))
        rest = max(
            _READ_SECONDS if names.issubset(self._queue) else _COUNT_SECONDS, self._reading * _SHARE_OF_TIME
        )
        if now - self._read_at >= rest:
            begun = time.thread_time()
            tickets = waiting(self._ticket.directory, self._settings)
            self._queue = [claim_name("ticket", other.id) for other in tickets]
            self._read_at, self._reading = now, time.thread_time() - begun
        else:
            self._queue = [name for name in self._queue if name in names]
        self._counted = now

    def _somebody_before(self) -> bool:
        """Whether one who is served before has a process that would take its turn; forgets who left."""
        for name in self._ahead():
            answers = _answers(self._ticket.directory, name)
            if answers:
                return True
            if answers is None:
                self._queue.remove(name)
        return False

    def _test(self, now: float) -> None:
        begun = time.thread_time()
        if self._leases.have_changed():
            self._changed, self._settle = True, _SETTLE_SECONDS
        self._tested = now
        self._testing = time.thread_time() - begun


def _answers(directory: LeaseDirectory, name: str) -> bool | None:
    """Whether a ticket waits and answers; None if it waits no longer."""
    fd = open_claim(directory, name)
    if fd is None:
        return None
    try:
        if not is_locked(fd):
            return None
        return abs(time.time() - os.fstat(fd).st_mtime) <= ANSWER_SECONDS
    finally:
        os.close(fd)
