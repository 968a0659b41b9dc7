"""What is asked of the frameworks in this process: one cap, the newest."""

from __future__ import annotations

from typing import NamedTuple

from gpulab.limits.pools import pool_bytes

__all__ = ["NOTHING", "Cap", "ask", "asked"]


class Cap(NamedTuple):
    """A wish for all frameworks alike; all None means growth only."""

    memory_bytes: int | None = None
    """Of the process on one GPU, CUDA's context included; None for no cap."""
    total_bytes: int | None = None
    """The memory of the smallest device that this process sees; None if unknown."""
    devices: int = 1
    """How many devices this process sees, as far as is known."""
    by_user: bool = False
    """Whether somebody called `limit_memory`, who then means it for their own earlier limits too."""

    @property
    def pool_bytes(self) -> int | None:
        """The cap of each framework's pool; None for no cap."""
        return None if self.memory_bytes is None else pool_bytes(self.memory_bytes)


NOTHING = Cap()

_asked: Cap | None = None


def ask(cap: Cap | None) -> None:
    """Replace what is asked, None for nothing; the frameworks follow when they are told to."""
    global _asked  # noqa: PLW0603 - one wish per process, and this module is its home
    _asked = cap


def asked() -> Cap | None:
    """What is asked now; None if neither a lease nor a call has asked for anything."""
    return _asked
