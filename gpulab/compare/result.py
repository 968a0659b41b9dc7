"""The result of a comparison: frozen, with its provenance, to and from JSON.

Only samples and circumstances are stored; medians, speedups and verdicts are worked out anew from
them, so a file cannot say more than it holds. Loading executes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gpulab.compare.results import judgement
from gpulab.compare.results.decoding import decode, encode
from gpulab.compare.results.judgement import Column, Speedup
from gpulab.compare.results.records import BackendRecord, Machine, Seconds, SizeRun
from gpulab.compare.timing import Summary
from gpulab.errors import RequestError, WorkloadError

if TYPE_CHECKING:
    from gpulab.compare.plots import Plot
    from gpulab.compare.results.tables import Table

__all__ = ["SCHEMA", "FirstCall", "Result", "Speedup", "load"]

SCHEMA = "gpulab.compare/2"
READABLE = (SCHEMA, "gpulab.compare/1")
"""What was added since has defaults that say: not known."""


class FirstCall(NamedTuple):
    """What the first call in a fresh process costs, in seconds."""

    import_seconds: float | None
    call_seconds: float | None
    """The first call, at the pilot size."""
    warm_seconds: float | None
    """The same call again."""


@dataclass(frozen=True)
class Result:
    """A comparison; `origin` says whether it was measured just now, loaded, or made up as an example."""

    workload: str
    title: str
    teaches: str
    unit: str
    origin: Literal["measured", "recorded", "example"]
    date: str
    gpulab: str
    seed: int
    budget_seconds: Seconds
    interrupted: bool
    machine: Machine
    backends: tuple[BackendRecord, ...]
    runs: tuple[SizeRun, ...]
    """One for each size, rising."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(run.size for run in self.runs)

    @property
    def speedup(self) -> Speedup | None:
        """At the largest size that has one, with its interval; None without proof: see `speedup_reason`."""
        found = judgement.latest_speedup(self)
        return found if isinstance(found, Speedup) else None

    @property
    def speedup_reason(self) -> str | None:
        """Why there is no speedup; None if there is one."""
        found = judgement.latest_speedup(self)
        return found if isinstance(found, str) else None

    @property
    def crossover(self) -> float | None:
        """The size from which the GPU is faster, between two measured sizes; None if there is none."""
        return judgement.crossing(self)

    @property
    def first_call(self) -> dict[str, FirstCall]:
        """For each backend that ran."""
        return {
            backend.name: FirstCall(
                backend.import_seconds, backend.first_call_seconds, backend.warm_call_seconds
            )
            for backend in self.backends
            if backend.first_call_seconds is not None
        }

    @property
    def break_even_calls(self) -> int | None:
        """Calls after which the GPU has made up for its slower start; None if never, or unknown."""
        return judgement.break_even(self)

    @property
    def verdict(self) -> str:
        """Does it pay? Only if the speedup's interval lies above 1.1."""
        return judgement.verdict(self)

    def speedup_at(self, size: int) -> Speedup | None:
        """The speedup at one size, or None. Raises RequestError for a size that is not in the result."""
        found = judgement.judge(self, self.run(size))
        return found if isinstance(found, Speedup) else None

    def reason_at(self, size: int) -> str | None:
        """Why there is no speedup at this size; None if there is one. Raises RequestError."""
        found = judgement.judge(self, self.run(size))
        return found if isinstance(found, str) else None

    def summary(self, backend: str, size: int, column: Column = "end_to_end") -> Summary | None:
        """Median seconds and their interval; None if it was not measured. Raises RequestError."""
        measured = {m.backend: m for m in self.run(size).measurements}
        self.backend(backend)
        return judgement.column_summary(measured[backend], column) if backend in measured else None

    def run(self, size: int) -> SizeRun:
        """All about one size. Raises RequestError."""
        for run in self.runs:
            if run.size == size:
                return run
        raise RequestError(
            f"There is no size {size!r} in this result; it has {', '.join(map(str, self.sizes))}."
        )

    def backend(self, name: str) -> BackendRecord:
        """All about one backend. Raises RequestError."""
        for backend in self.backends:
            if backend.name == name:
                return backend
        names = ", ".join(backend.name for backend in self.backends)
        raise RequestError(f"There is no backend {name!r} in this result; it has {names}.")

    def label(self, name: str) -> str:
        """A backend as people read it, with its threads."""
        backend = self.backend(name)
        if backend.threads is None:
            return backend.title
        return f"{backend.title} ({backend.threads} thread{'' if backend.threads == 1 else 's'})"

    def table(self) -> Table:
        """Medians with intervals, and below them what may be said; printed as text, in notebooks as HTML."""
        from gpulab.compare.results.tables import Table

        return Table(self)

    def plot(self) -> Plot:
        """Time against size: a Matplotlib figure that is readable on light and dark pages."""
        from gpulab.compare.plots import draw

        return draw(self)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object, schema `gpulab.compare/2`."""
        return {"schema": SCHEMA, **encode(self)}

    @classmethod
    def from_dict(cls, record: Any) -> Result:
        """The inverse of `to_dict`. Raises WorkloadError that names what is wrong."""
        if not isinstance(record, dict) or record.get("schema") not in READABLE:
            raise WorkloadError(_wrong_schema(record))
        result = decode(cls, {key: value for key, value in record.items() if key != "schema"})
        _check_names(result)
        return result

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as JSON, whole or not at all. Raises WorkloadError with the path and a remedy."""
        target = os.fsdecode(path)
        temporary = f"{target}.{os.getpid()}"
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(f"{text}\n")
            os.replace(temporary, target)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise WorkloadError(
                f"The result could not be saved as {target} ({error.strerror}), and is still in memory; "
                "save it under a file name in a folder that exists, has room and lets you write."
            ) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read a saved result; what was measured then is `recorded` now. Raises WorkloadError."""
        return load(path)

    def __repr__(self) -> str:
        return f"<Result of {self.workload}: {self.verdict}>"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def load(path: str | os.PathLike[str]) -> Result:
    """See `Result.load`."""
    try:
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
    except OSError as error:
        raise WorkloadError(
            f"{os.fspath(path)} cannot be read ({error.strerror}); check its name."
        ) from error
    except (ValueError, RecursionError) as error:
        raise WorkloadError(
            f"{os.fspath(path)} is not JSON ({error}); load a file that gpulab saved."
        ) from error
    result = Result.from_dict(record)
    return replace(result, origin="recorded") if result.origin == "measured" else result


def _check_names(result: Result) -> None:
    """Every backend that is spoken of is described once, and every size is there once, rising."""
    _check_once([backend.name for backend in result.backends], "describes")
    sides = {backend.name: backend.side for backend in result.backends}
    for run in result.runs:
        for name in sorted(_spoken_of(run) - set(sides))[:1]:
            raise WorkloadError(
                f"This result names a backend {name[:60]!r} that it does not describe; measure again."
            )
        _check_once([measurement.backend for measurement in run.measurements], "measures")
        if run.best_cpu is not None and sides[run.best_cpu] != "cpu":
            raise WorkloadError(
                f"This result names {run.best_cpu[:60]!r} as its best CPU backend, which it describes as "
                "a GPU backend, so gpulab did not write it; measure again."
            )
    if list(result.sizes) != sorted(set(result.sizes)):
        raise WorkloadError(
            "The sizes of this result do not rise, so gpulab did not write it; measure again."
        )


def _spoken_of(run: SizeRun) -> set[str]:
    names = {measurement.backend for measurement in run.measurements}
    names.update(run.race, run.failures, run.placement, run.strangers, run.conditions)
    names.update(run.fell_back, run.peak_bytes, run.peers, run.peers.values())
    names.update(name for check in run.parity for name in (check.reference, check.candidate))
    return names if run.best_cpu is None else names | {run.best_cpu}


def _check_once(names: list[str], does: str) -> None:
    for name in sorted({name for name in names if names.count(name) > 1})[:1]:
        raise WorkloadError(
            f"This result {does} the backend {name[:60]!r} twice, so gpulab did not write it; measure again."
        )


def _wrong_schema(record: Any) -> str:
    schema = record.get("schema") if isinstance(record, dict) else None
    if isinstance(schema, str) and schema.startswith("gpulab.compare/"):
        return (
            f"This result has the schema {schema[:40]!r}, and this gpulab reads {SCHEMA!r}; upgrade gpulab."
        )
    return f"This is not a result that gpulab wrote: it has no schema {SCHEMA!r}; load another file."
