"""A range of time as people write it: "1h" ago, a date, an instant."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime, timedelta

from gpulab.errors import RequestError
from gpulab.units import parse_duration

__all__ = ["Moment", "instant", "iso", "span"]

Moment = str | float | datetime | timedelta
"""A duration before now ("1h", "24h", "7d", a number of seconds, a timedelta), an instant (ISO 8601 text or a
datetime, in local time if it names no zone), or "now"."""

_EXAMPLES = "write for example 24h, 7d, 2030-01-31 or 2030-01-31T18:00"
_AHEAD_SECONDS = 1.0


def span(since: Moment, until: Moment | None = None, *, now: float | None = None) -> tuple[float, float]:
    """The range in seconds since the epoch; `until` None means now, and never ends later.

    Raises RequestError for what is no time, and for a range that is empty or has yet to come.
    """
    now = time.time() if now is None else now
    begin = instant(since, now=now)
    end = now if until is None else instant(until, now=now)
    if begin > now + _AHEAD_SECONDS:
        raise RequestError(f"{since} has yet to come; let the range begin in the past, for example 24h ago.")
    if begin >= end:
        raise RequestError(
            f"The range begins at {_local(begin)} and ends at {_local(end)}; let it begin before it ends."
        )
    return begin, min(end, max(now, begin))


def instant(value: Moment, *, now: float) -> float:
    """Seconds since the epoch. Raises RequestError for what is neither a duration nor an instant."""
    if isinstance(value, timedelta):
        return _earlier(value.total_seconds(), value, now)
    if isinstance(value, datetime):
        return _epoch(value, value)
    if not isinstance(value, str):
        return _earlier(value, value, now)
    text = value.strip()
    if text.lower() == "now":
        return now
    with_zone = f"{text[:-1]}+00:00" if text[-1:] in ("Z", "z") else text
    try:
        moment = datetime.fromisoformat(with_zone)
    except ValueError:
        return _earlier(text, value, now)
    return _earlier(text, value, now) if text.isdecimal() else _epoch(moment, value)


def iso(seconds: float) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _earlier(duration: str | float, value: Moment, now: float) -> float:
    try:
        seconds = parse_duration(duration)
    except RequestError:
        raise RequestError(f"{str(value)!r} is no time; {_EXAMPLES}.") from None
    if seconds > now:
        raise RequestError(f"{value} ago is before any history; {_EXAMPLES}.")
    return now - seconds


def _epoch(moment: datetime, value: Moment) -> float:
    """A time without a zone is local: it is what the clock on the wall said."""
    try:
        seconds = moment.timestamp()
    except (ValueError, OverflowError, OSError):
        seconds = math.nan
    if not 0 <= seconds < 2.0**40:
        raise RequestError(f"{str(value)!r} is before or beyond any history; {_EXAMPLES}.")
    return seconds


def _local(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s since the epoch"
