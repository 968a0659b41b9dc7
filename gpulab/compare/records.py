"""The frozen parts of a result, and their strict reading from JSON: nothing unknown, nothing executed."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from gpulab.errors import WorkloadError

__all__ = ["BackendRecord", "Machine", "Measurement", "Parity", "Sample", "SizeRun", "decode", "encode"]

T = TypeVar("T")


@dataclass(frozen=True)
class Sample:
    """One timed repeat. Columns that a side does not have are None."""

    end_to_end_seconds: float
    compute_seconds: float
    host_to_device_seconds: float | None = None
    device_to_host_seconds: float | None = None
    stalled_share: float | None = None
    """Share of the repeat in which some task waited for a CPU; None where the kernel does not say."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value < 0:
                raise WorkloadError(f"A sample's {name} cannot be {value}; measure again.")


@dataclass(frozen=True)
class Measurement:
    """One backend at one size."""

    backend: str
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class Parity:
    """Whether two backends gave the same result; filled in by the workload's check."""

    state: Literal["same", "tie", "different"]
    """tie: different only where rounding decides."""
    message: str
    score: float | None = None
    """The workload's summary of agreement; 1.0 is perfect."""
    reference: str = ""
    candidate: str = ""


@dataclass(frozen=True)
class SizeRun:
    """All that is known about one size."""

    size: int
    state: Literal["measured", "not_run", "interrupted"]
    reason: str = ""
    """Why it was not run, or not to the end."""
    arrays: dict[str, str] = field(default_factory=dict)
    """Name of each array of the data: its dtype and shape."""
    parameters: dict[str, float] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None
    """Estimated peak of the hungriest backend."""
    best_cpu: str | None = None
    race: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Seconds of the short race that found the best CPU backend."""
    measurements: tuple[Measurement, ...] = ()
    parity: tuple[Parity, ...] = ()
    placement: dict[str, str] = field(default_factory=dict)
    """For each GPU backend: empty if it is proved that it ran on the GPU, else why it is not."""
    failures: dict[str, str] = field(default_factory=dict)
    """Backends that did not get through this size, and why."""


@dataclass(frozen=True)
class BackendRecord:
    """A backend, whether it could run, and what starting it cost."""

    name: str
    title: str
    side: Literal["cpu", "gpu"]
    library: str
    state: Literal["ready", "unavailable", "failed"]
    reason: str = ""
    threads: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    import_seconds: float | None = None
    first_call_seconds: float | None = None
    """At the pilot size: context, compilation and all else that only the first call pays."""
    warm_call_seconds: float | None = None
    """The same call again."""
    pilot_size: int | None = None


@dataclass(frozen=True)
class Machine:
    """Where it was measured, without the host's name."""

    cpu: str | None
    usable_cores: int | None
    """Those this process may run on."""
    core_quota: float | None
    """Cores' worth of time the container allows; None without a quota."""
    memory_bytes: int | None
    platform: str
    python: str
    gpu: str | None = None
    driver: str | None = None
    cuda: str | None = None
    gpu_reason: str = ""
    """Why there is no GPU side."""
    simulated: bool = False
    pressure: str | None = None
    """The file that told how long tasks waited for a CPU: the container's, else the machine's."""


def encode(value: Any) -> Any:
    """Plain dicts, lists and scalars."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


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
        _require(isinstance(value, dict), where, "an object", value)
        return {key: _decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    return _decode_scalar(kind, value, where)


def _decode_record(kind: Any, value: Any, where: str) -> Any:
    _require(isinstance(value, dict), where, "an object", value)
    hints = typing.get_type_hints(kind)
    unknown = set(value) - set(hints)
    _require(not unknown, where, "without the unknown entry " + ", ".join(sorted(unknown)), "it")
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


def _decode_scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        _require(number and math.isfinite(value), where, "a finite number", value)
        return float(value)
    if kind is int:
        _require(isinstance(value, int) and not isinstance(value, bool), where, "a whole number", value)
        return value
    _require(isinstance(value, kind), where, {str: "text", bool: "true or false"}[kind], value)
    return value


def _require(holds: bool, where: str, expected: str, value: Any) -> None:
    if not holds:
        raise WorkloadError(
            f"This is not a result that gpulab wrote: {where} should be {expected}, but is "
            f"{str(value)[:60]!r}; measure again or load another file."
        )
