"""The simulated machine's clock: the wall's, unless a rehearsal sets it."""

import time

__all__ = ["now", "set_to"]

_set: list[float] = []


def now() -> float:
    """Seconds since the epoch, as the simulated machine counts them."""
    return _set[0] if _set else time.time()


def set_to(seconds: float | None) -> None:
    """Stop the clock at an instant; None lets it run with the wall's again. For this process only."""
    _set[:] = [] if seconds is None else [seconds]
