"""A kernel with a share of a GPU is warned when it takes more than its share."""

from __future__ import annotations

from gpulab import config
from gpulab.allocation import session
from gpulab.allocation.session import Lease
from gpulab.jupyter.attendant import DONE, Attendant

__all__ = ["attend_share"]

_EVERY = 10.0


class _Share:
    """The duty: one sentence each time the process goes over its lease, none while it stays there."""

    def __init__(self, attendant: Attendant, lease: Lease) -> None:
        self._attendant = attendant
        self._lease = lease
        self._over = False

    def __call__(self) -> object:
        from gpulab import limits  # loads nothing before there is a share

        if not self._lease.is_held() or session.current() is not self._lease:
            return DONE
        excess = limits.excess(config.load())
        if excess is not None and not self._over:
            self._attendant.say(excess[:1].lower() + excess[1:])
        self._over = excess is not None
        return None


def attend_share(attendant: Attendant, lease: Lease) -> None:
    """Watch a lease that is a share, for as long as this process holds it."""
    if lease.memory_bytes is not None and lease.held is not None:
        attendant.attend(_Share(attendant, lease), every=_EVERY)
