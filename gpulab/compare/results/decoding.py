"""Frozen records to JSON and, strictly, back: nothing unknown, nothing out of bounds, nothing executed."""

from __future__ import annotations

import dataclasses
import types
import typing
import unicodedata
from typing import Any, Literal, NamedTuple, TypeVar

from gpulab.errors import WorkloadError

__all__ = ["Bounds", "clean", "decode", "encode"]

T = TypeVar("T")

LONGEST_TEXT = 4000


class Bounds(NamedTuple):
    """A number's bounds, both included; the annotation of a field."""

    low: float
    high: float


_ANY = {float: Bounds(-1e300, 1e300), int: Bounds(-(10**18), 10**18)}


def encode(value: Any) -> Any:
    """Plain dicts, lists and scalars."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def clean(text: str) -> str:
    """One line of a library's text, as `decode` lets it pass: no control characters, not too long."""
    words = "".join(c if _can_be_shown(c) else " " for c in text).split()
    return " ".join(words)[:LONGEST_TEXT]


def decode(kind: type[T], value: Any, where: str = "the result") -> T:
    """The inverse of `encode`. Raises WorkloadError that names the first entry of a wrong kind."""
    decoded: T = _decode(kind, value, where)
    return decoded


def _decode(kind: Any, value: Any, where: str) -> Any:  # noqa: PLR0911  one return for each kind
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _decode_record(kind, value, where)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return _decode(next(a for a in arguments if a is not type(None)), value, where)
    if origin is Literal:
        _require(value in arguments, where, f"one of {', '.join(map(repr, arguments))}", value)
        return value
    if origin is tuple:
        _require(isinstance(value, list), where, "a list", value)
        return tuple(_decode(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        return _decode_dict(arguments[1], value, where)
    if origin is typing.Annotated:
        return _decode_number(arguments[0], value, where, arguments[1])
    if kind in _ANY:
        return _decode_number(kind, value, where, _ANY[kind])
    return _decode_text(value, where) if kind is str else _decode_truth(value, where)


def _decode_record(kind: Any, value: Any, where: str) -> Any:
    _require(isinstance(value, dict), where, "an object", value)
    hints = typing.get_type_hints(kind, include_extras=True)
    unknown = sorted(set(value) - set(hints))
    _require(not unknown, where, f"without the unknown entry {unknown[0][:60]!r}" if unknown else "", "it")
    fields: dict[str, Any] = {}
    for entry in dataclasses.fields(kind):
        if entry.name in value:
            fields[entry.name] = _decode(hints[entry.name], value[entry.name], f"{where}.{entry.name}")
        else:
            optional = (
                entry.default is not dataclasses.MISSING or entry.default_factory is not dataclasses.MISSING
            )
            _require(optional, f"{where}.{entry.name}", "present", "missing")
    return kind(**fields)


def _decode_dict(kind: Any, value: Any, where: str) -> dict[str, Any]:
    _require(isinstance(value, dict), where, "an object", value)
    for key in value:
        _decode_text(key, f"a name in {where}")
    return {key: _decode(kind, item, f"{where}.{key[:60]}") for key, item in value.items()}


def _decode_number(kind: Any, value: Any, where: str, bounds: Bounds) -> Any:
    """A number of this kind within its bounds; NaN is in no bounds."""
    whole = kind is int
    number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    _require(number, where, "a whole number" if whole else "a finite number", value)
    low, high = bounds
    expected = f"{'a whole' if whole else 'a finite'} number from {low:.4g} to {high:.4g}"
    _require(low <= value <= high, where, expected, value)
    return kind(value)


def _decode_text(value: Any, where: str) -> str:
    _require(isinstance(value, str), where, "text", value)
    _require(len(value) <= LONGEST_TEXT, where, f"text of at most {LONGEST_TEXT:,} characters", value)
    _require(all(map(_can_be_shown, value)), where, "text without control characters", value)
    return str(value)


def _decode_truth(value: Any, where: str) -> bool:
    _require(isinstance(value, bool), where, "true or false", value)
    return bool(value)


def _can_be_shown(character: str) -> bool:
    """Not what would steer a terminal, nor the half of a pair, which no file can hold."""
    return character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs")


def _require(holds: bool, where: str, expected: str, value: Any) -> None:
    if not holds:
        raise WorkloadError(
            f"This is not a result that gpulab wrote: {where} should be {expected}, but is "
            f"{_shown(value)}; measure again or load another file."
        )


def _shown(value: Any) -> str:
    """A value in short, whatever it is: some are too large or too deep to be written out."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and abs(value) > 10**18:
        return "one of more than 18 digits"
    return repr(str(value)[:60])
