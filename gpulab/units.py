"""Bytes and durations: parsed from what people type, printed as people read them."""

from __future__ import annotations

import math
import re

from gpulab.errors import RequestError

__all__ = ["format_bytes", "format_duration", "parse_bytes", "parse_duration"]

_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


def _parse(text: str, factors: dict[str, float] | dict[str, int], example: str, what: str) -> float:
    match = _QUANTITY.fullmatch(text)
    unit = match.group(2) if match else ""
    factor = factors.get(unit.lower()) if match else None
    if match is None or factor is None:
        raise RequestError(f"{text!r} is not {what}; write for example {example}.")
    number = float(match.group(1)) * factor
    if not math.isfinite(number):
        raise RequestError(f"{text!r} is too large for {what}; write for example {example}.")
    return number


def parse_bytes(value: int | str) -> int:
    """Read a number of bytes: `8GiB`, `8 GB`, `512m` (binary, as in Docker), or a plain number.

    Raises RequestError for anything else, and for a size that is not positive.
    """
    size = _parse(value, _BYTES, "8GiB", "a size") if isinstance(value, str) else value
    if not hasattr(size, "__float__"):  # NumPy's numbers are welcome
        raise RequestError(f"{value!r} is not a size; write for example 8GiB.")
    if not 1 <= size < math.inf:
        raise RequestError(f"A size must be positive and finite, not {value!r}; write for example 8GiB.")
    if size >= 2**63:
        raise RequestError(f"{value!r} is more memory than any machine has; write for example 8GiB.")
    return int(size)


def parse_duration(value: float | str) -> float:
    """Read a duration in seconds: `90`, `90s`, `15m`, `1h`, `2d`. Raises RequestError."""
    if isinstance(value, str):
        return _parse(value, _SECONDS, "90s or 15m", "a duration")
    if not hasattr(value, "__float__"):
        raise RequestError(f"{value!r} is not a duration; write for example 90s or 15m.")
    if not 0 <= value < math.inf:
        wrong = "negative" if value < 0 else "without an end"
        raise RequestError(f"A duration cannot be {wrong}, as {value!r} is; write for example 90s.")
    return float(value)


def format_bytes(size: int | float | None) -> str:
    """`8.0 GiB`; `n/a` for an unknown size."""
    if size is None:
        return "n/a"
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{int(size)} B"


def format_duration(seconds: float | None) -> str:
    """`850 ms`, `12 s`, `5 min`, `3 h 05 min`, `2 d 4 h`; `n/a` if unknown."""
    if seconds is None:
        return "n/a"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
