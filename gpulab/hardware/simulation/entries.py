"""Typed reading of the scenario's JSON objects; each error names the place, the value and what it must be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from gpulab.errors import RequestError, ScenarioError
from gpulab.hardware.simulation.machine import Series, Steps, Wave
from gpulab.hardware.throttling import REASONS, bits_of
from gpulab.units import parse_bytes

__all__ = [
    "Entry",
    "Read",
    "flag",
    "integer",
    "listing",
    "number",
    "one_of",
    "positive",
    "series",
    "size",
    "size_series",
    "text",
    "texts",
    "throttling",
]

T = TypeVar("T")
D = TypeVar("D")
Read = Callable[[Any, str], T]


class Entry:
    """One object of the file: each key is taken once, and what is left over is an error."""

    def __init__(self, value: Any, where: str) -> None:
        self.where = where
        self._left = dict(_is(dict, "an object", value, where))
        self._known: list[str] = []

    def take(self, key: str, read: Read[T], default: D) -> T | D:
        self._known.append(key)
        return read(self._left.pop(key), f"{self.where}: {key}") if key in self._left else default

    def each(self, key: str, read: Callable[[Entry], T]) -> list[T]:
        entries = self.take(key, listing, [])
        return [read(Entry(value, f"{self.where}: {key}[{i}]")) for i, value in enumerate(entries)]

    def close(self) -> None:
        for key, value in self._left.items():
            raise ScenarioError(
                f"{self.where}: {key!r} ({value!r}) is not a key here; the keys are {', '.join(self._known)}."
            )


def _is(kind: type | tuple[type, ...], what: str, value: Any, where: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ScenarioError(f"{where} is {value!r}; it must be {what}.")
    return value


def listing(value: Any, where: str) -> list[Any]:
    """A list."""
    return list(_is(list, "a list", value, where))


def text(value: Any, where: str) -> str:
    """A text."""
    return str(_is(str, "a text", value, where))


def flag(value: Any, where: str) -> bool:
    """True or false."""
    return bool(_is(bool, "true or false", value, where))


def number(value: Any, where: str) -> float:
    """A number."""
    return float(_is((int, float), "a number", value, where))


def integer(value: Any, where: str) -> int:
    """A whole number."""
    return int(_is(int, "a whole number", value, where))


def size(value: Any, where: str) -> int:
    """Bytes: a number, or a text such as 8GiB."""
    if isinstance(value, str):
        try:
            return parse_bytes(value)
        except RequestError as error:
            raise ScenarioError(f"{where} is {value!r}; it must be a size such as 8GiB.") from error
    return int(_is((int, float), "a size such as 8GiB", value, where))


def texts(value: Any, where: str) -> tuple[str, ...]:
    """A list of texts."""
    return tuple(text(item, where) for item in listing(value, where))


def one_of(choices: Any) -> Read[str]:
    """A reader of one of these texts."""

    def read(value: Any, where: str) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ScenarioError(f"{where} is {value!r}; it must be one of {', '.join(choices)}.")
        return value

    return read


def positive(value: Any, where: str) -> float:
    """A number above 0."""
    found = number(value, where)
    if not 0 < found < math.inf:
        raise ScenarioError(f"{where} is {value!r}; it must be more than 0.")
    return found


def series(value: Any, where: str, read: Read[float] = number) -> Series:
    """A number, {"wave": {low, high, period, phase}} or {"steps": [[seconds, value], ...], "repeat"}."""
    if not isinstance(value, dict):
        return read(value, where)
    entry = Entry(value, where)
    wave = entry.take("wave", lambda v, w: _wave(Entry(v, w), read), None)
    steps = entry.take("steps", lambda v, w: _steps(listing(v, w), w, read), None)
    repeat = entry.take("repeat", flag, False)
    entry.close()
    if wave is not None and steps is None:
        return wave
    if steps is not None and wave is None:
        return steps._replace(repeat=repeat)
    raise ScenarioError(f"{where} is {value!r}; it must be a number, or have one of wave and steps.")


def size_series(value: Any, where: str) -> Series:
    """The same for memory: its numbers may be sizes such as 8GiB."""
    return series(value, where, size)


def throttling(value: Any, where: str) -> Series:
    """What holds the clocks down, as NVML's bits: a list of reasons, or steps with lists as values."""
    return float(_bits(value, where)) if isinstance(value, list) else series(value, where, _bits)


def _bits(value: Any, where: str) -> float:
    return float(bits_of([one_of(REASONS)(name, where) for name in texts(value, where)]))


def _wave(entry: Entry, read: Read[float]) -> Wave:
    wave = Wave(
        low=entry.take("low", read, 0.0),
        high=entry.take("high", read, 0.0),
        period=entry.take("period", positive, 30.0),
        phase=entry.take("phase", number, 0.0),
    )
    entry.close()
    return wave


def _steps(pairs: list[Any], where: str, read: Read[float]) -> Steps:
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ScenarioError(f"{where} has {pair!r}; it must be a pair of seconds and value.")
    times = tuple(number(pair[0], where) for pair in pairs)
    if not times or list(times) != sorted(times):
        raise ScenarioError(f"{where} is {pairs!r}; its seconds must be there, and ascend.")
    return Steps(times, tuple(read(pair[1], where) for pair in pairs))
