"""The policies: which of the devices that fit comes first, in numbers and in words.

idlest
    Whole GPUs: the least busy, then the one with the least memory in use. Shares: the tightest fit, so
    that whole GPUs stay free.
pack
    Whole GPUs: MIG slices beside slices that are leased, then the smallest, so that undivided and larger
    ones stay free. Shares: GPUs that are shared already, the fullest first.
spread
    Whole GPUs: MIG slices beside the fewest that are leased, then the least busy. Shares: the GPU with
    the fewest shares, then the emptiest.
most-free-memory
    The most free memory; for shares, the most that is left to lease.
coolest
    The lowest temperature, a slice's being its GPU's; then the least busy.
uuid:PREFIX, name:TEXT
    Only devices whose UUID begins, or whose name contains, what follows; among them the idlest.

Under each of them a device of which something is unknown comes after those that are known.
"""

from collections.abc import Callable

from gpulab.allocation.occupancy import Occupancy, Want
from gpulab.units import format_bytes

__all__ = ["score", "words"]

_UNKNOWN = float("inf")


def score(place: Occupancy, want: Want) -> tuple[float, ...]:
    """The smaller, the sooner it is chosen. For devices that fit."""
    unknown = (float(is_unknown) for _, is_unknown in _unknown(place))
    return (*unknown, *_SCORES.get(want.policy, _idlest)(place, want))


def words(place: Occupancy, want: Want) -> str:
    """Why a device that fits stands where it does."""
    kind = want.policy.partition(":")[0]
    text = _WORDS.get(kind, _say_idlest)(place, want)
    hidden = [what for what, is_unknown in _unknown(place) if is_unknown]
    if hidden:
        text += f" (after the others, since its {' and '.join(hidden)} cannot be known)"
    return f"{text}, named by {want.policy}" if ":" in want.policy else text


def _unknown(place: Occupancy) -> tuple[tuple[str, bool], ...]:
    device, memory = place.device, place.device.memory
    return (
        ("list of processes", device.processes is None),
        ("memory", memory.used_bytes is None or memory.total_bytes is None),
        ("utilization", device.gpu_percent is None),
    )


def _busy(place: Occupancy) -> float:
    return _UNKNOWN if place.device.gpu_percent is None else place.device.gpu_percent


def _in_use(place: Occupancy) -> float:
    return _UNKNOWN if place.device.memory.used_bytes is None else float(place.used)


def _celsius(place: Occupancy) -> float:
    device = place.parent or place.device
    return _UNKNOWN if device.temperature_celsius is None else device.temperature_celsius


def _free_bytes(place: Occupancy) -> float:
    memory = place.device.memory
    return -_UNKNOWN if memory.free_bytes is None else float(memory.free_bytes)


def _neighbours(place: Occupancy) -> int:
    return sum(other.exclusive or bool(other.shares) for other in place.siblings)


def _idlest(place: Occupancy, want: Want) -> tuple[float, ...]:
    return (_busy(place), _in_use(place)) if want.exclusive else (place.left, _busy(place))


def _pack(place: Occupancy, want: Want) -> tuple[float, ...]:
    if want.exclusive:
        total = place.device.memory.total_bytes
        return -_neighbours(place), _UNKNOWN if total is None else total
    return not place.shares, place.left / max(1, place.capacity)


def _spread(place: Occupancy, want: Want) -> tuple[float, ...]:
    if want.exclusive:
        return _neighbours(place), _busy(place), _in_use(place)
    return place.shares, _neighbours(place), -place.left


def _most_free(place: Occupancy, want: Want) -> tuple[float, ...]:
    return (-_free_bytes(place),) if want.exclusive else (-place.left,)


def _coolest(place: Occupancy, _want: Want) -> tuple[float, ...]:
    return _celsius(place), _busy(place)


def _left(place: Occupancy) -> str:
    return f"{format_bytes(place.left)} left to share"


def _beside(place: Occupancy) -> str:
    return f"beside {place.shares} other share{'s' if place.shares != 1 else ''}"


def _idleness(place: Occupancy) -> str:
    percent = place.device.gpu_percent
    return "utilization unknown" if percent is None else f"{percent:.0f} % busy"


def _say_idlest(place: Occupancy, want: Want) -> str:
    if want.exclusive:
        return f"free, {_idleness(place)}, {format_bytes(place.device.memory.used_bytes)} in use"
    return f"{_left(place)}, the tightest fit first so that whole GPUs stay free"


def _say_pack(place: Occupancy, want: Want) -> str:
    if not want.exclusive:
        return f"{_left(place)} {_beside(place)}, the fullest GPU first"
    beside = f", beside {_neighbours(place)} leased slices" if place.siblings else ""
    total = place.device.memory.total_bytes
    size = "size unknown" if total is None else format_bytes(total)
    return f"free{beside}, {size}, the smallest first so that larger ones stay free"


def _say_spread(place: Occupancy, want: Want) -> str:
    if not want.exclusive:
        return f"{_left(place)} {_beside(place)}, the GPU with the fewest first"
    beside = f", beside {_neighbours(place)} leased slices" if place.siblings else ""
    return f"free{beside}, {_idleness(place)}, the one with the fewest neighbours first"


def _say_most_free(place: Occupancy, want: Want) -> str:
    if not want.exclusive:
        return f"{_left(place)}, the most first"
    free = place.device.memory.free_bytes
    size = "free memory unknown" if free is None else f"{format_bytes(free)} of memory free"
    return f"free, {size}, the most first"


def _say_coolest(place: Occupancy, want: Want) -> str:
    celsius = _celsius(place)
    warmth = "temperature unknown" if celsius == _UNKNOWN else f"{celsius:.0f} °C, the coolest first"
    return f"free, {warmth}" if want.exclusive else f"{_left(place)}, {warmth}"


_SCORES: dict[str, Callable[[Occupancy, Want], tuple[float, ...]]] = {
    "pack": _pack,
    "spread": _spread,
    "most-free-memory": _most_free,
    "coolest": _coolest,
}
_WORDS: dict[str, Callable[[Occupancy, Want], str]] = {
    "pack": _say_pack,
    "spread": _say_spread,
    "most-free-memory": _say_most_free,
    "coolest": _say_coolest,
}
