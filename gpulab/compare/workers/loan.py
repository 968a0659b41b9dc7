"""A GPU for the time of one comparison, where this process holds none: only the GPU workers get to see it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from gpulab import config
from gpulab.errors import GpulabError

if TYPE_CHECKING:
    from gpulab.allocation.session import Lease
    from gpulab.compare.backend import Backend
    from gpulab.compare.results.records import Machine

__all__ = ["Loan", "borrow"]


class Loan(NamedTuple):
    """What the GPU workers need, or why there is nothing for them."""

    environment: dict[str, str] | None = None
    """Theirs; None means this process's own, which has a lease or needs none."""
    reason: str = ""
    """Why they cannot have a GPU; empty if they can."""


@contextlib.contextmanager
def borrow(machine: Machine, backends: Iterable[Backend]) -> Iterator[Loan]:
    """Lease a GPU if one of the backends can use it and this process holds none; given back at the end.

    No GPU being free is a reason and raises nothing.
    """
    wanted = any(backend.side == "gpu" and not backend.missing() for backend in backends)
    if machine.gpu_reason or not wanted:
        yield Loan()
        return
    try:
        lease = _lease()
    except GpulabError as error:
        yield Loan(reason=str(error).rstrip("."))
        return
    if lease is None:
        yield Loan()
        return
    try:
        yield Loan({**config.without_lease(), **lease.environment()})
    finally:
        if lease.held is not None:
            lease.held.give_up()


def _lease() -> Lease | None:
    """A new lease; None if this process already holds one, which its children inherit."""
    from gpulab.allocation.policy import Request
    from gpulab.allocation.session import current, grant
    from gpulab.hardware.observe import observe

    if current() is not None:
        return None
    settings = config.load()
    request = Request(policy=settings.policy)
    return grant(request, observe(max_age=0, settings=settings), settings)
