"""What a driver may say of one value: anything outside of what is possible is unknown."""

from __future__ import annotations

from gpulab.hardware.devices import Memory
from gpulab.hardware.throttling import reasons_of

__all__ = ["host_memory", "megahertz", "percent", "rate", "reasons", "size", "thousandth"]

_MOST_MEGAHERTZ = 10_000
_MOST_BYTES_PER_SECOND = 1e13


def megahertz(value: int | None) -> float | None:
    """A clock."""
    return float(value) if value is not None and 0 <= value < _MOST_MEGAHERTZ else None


def reasons(bits: int | None) -> tuple[str, ...] | None:
    """The names of those bits that are known."""
    if bits is None or not 0 <= bits < 2**63:
        return None
    return reasons_of(bits)


def rate(value: float | None) -> float | None:
    """Bytes per second."""
    return float(value) if value is not None and 0 <= value < _MOST_BYTES_PER_SECOND else None


def size(value: int | None, most: int | None = None) -> int | None:
    """None for the sentinel of "not available", and for more than there is."""
    if value is None or not 0 <= value < 2**63 or (most is not None and value > most):
        return None
    return int(value)


def percent(value: int | None) -> float | None:
    """0 to 100."""
    return float(value) if value is not None and 0 <= value <= 100 else None


def thousandth(value: int | None, most: float) -> float | None:
    """Watts of milliwatts, joules of millijoules, below `most`."""
    return value / 1000 if value is not None and 0 <= value / 1000 < most else None


def host_memory() -> Memory:
    """Of a GPU that shares its memory with the processor: what the kernel says of it."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        total, free = (int(lines[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, KeyError, IndexError):
        return Memory(shared_with_host=True)
    return Memory(total_bytes=total, used_bytes=total - free, free_bytes=free, shared_with_host=True)
