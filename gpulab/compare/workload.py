"""What a workload is, and where the workloads are found. Nothing heavy is imported here."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gpulab.compare.arrays import load_arrays
from gpulab.compare.backend import Backend, Parameters
from gpulab.compare.results.records import Parity
from gpulab.compare.timing import ENOUGH_REPEATS, MOST_REPEATS
from gpulab.errors import RequestError

if TYPE_CHECKING:
    from gpulab.compare.arrays import Arrays
    from gpulab.compare.result import Result

__all__ = ["Workload", "find_workload", "select_workloads", "workload_at", "workload_names"]

_FAMILIES = {"dbscan": "gpulab.compare.workloads.dbscan"}
"""The module of each family; the names in its `WORKLOADS` are FAMILY or FAMILY.TASK."""
_OWN = "gpulab.compare.own."


class Workload:
    """Work that several backends can do on the same data, with a check that they did the same."""

    name: str
    """FAMILY or FAMILY.TASK."""
    title: str
    teaches: str
    """One sentence: what a reader learns from comparing it."""
    unit: str
    """What `size` counts: points, rows."""
    sizes: tuple[int, ...]
    pilot_size: int
    """Small enough that its first call is all start-up cost: import, context, compilation."""
    backends: tuple[Backend, ...]
    repeats: tuple[int, int] = (ENOUGH_REPEATS, MOST_REPEATS)
    """The fewest and the most timed repeats of a side."""
    warm_up: bool = True
    """Whether a side gets one untimed call after each change of sides."""

    @property
    def address(self) -> str:
        """What `workload_at` finds it by in a worker process."""
        return self.name

    def data_bytes(self, size: int) -> int:
        """Estimated peak while the data are made, before they are."""
        raise NotImplementedError

    def make_data(self, size: int, seed: int) -> Arrays:
        """The data, the same for every backend."""
        raise NotImplementedError

    def write_files(self, data: Arrays, parameters: Parameters, folder: str) -> None:
        """Write what is no array into `folder`, where the arrays are too: a CSV file, say."""

    def parameters(self, size: int) -> dict[str, float]:  # noqa: ARG002
        """What every backend gets besides the data."""
        return {}

    def facts(self, data: Arrays, parameters: Parameters) -> dict[str, float]:  # noqa: ARG002
        """Measured on the data: what decides how much work there is."""
        return {}

    def memory_bytes(self, size: int, facts: Mapping[str, float]) -> int:
        """Estimated peak of the hungriest backend, before it runs."""
        raise NotImplementedError

    def kept(self, folder: str) -> Any:
        """What a backend's `keep` wrote, for `check`: by default arrays by name, mapped rather than read."""
        return load_arrays(folder, mapped=True)

    def check(self, data: Arrays, parameters: Parameters, reference: Any, candidate: Any) -> Parity:
        """Whether both results, as `kept` returns them, are the same."""
        raise NotImplementedError

    def remarks(self, result: Result) -> list[str]:  # noqa: ARG002
        """Sentences for below the table that only this workload can work out from its result."""
        return []


def workload_names() -> tuple[str, ...]:
    """The names of all workloads there are."""
    return tuple(name for family in _FAMILIES for name in _family(family))


def find_workload(name: str) -> Workload:
    """The workload of exactly this name. Raises RequestError with the names that exist."""
    found = _family(name.partition(".")[0]).get(name) if isinstance(name, str) else None
    if found is None:
        raise RequestError(_no_workload(name))
    return found


def select_workloads(names: str | Iterable[str]) -> tuple[Workload, ...]:
    """Those of these names, once each; a family's name stands for all its tasks, `all` for everything.

    A name that is a workload's own, such as `dbscan`, means that one. Raises RequestError.
    """
    wanted = names.split(",") if isinstance(names, str) else list(names)
    found: dict[str, Workload] = {}
    for name in wanted:
        found.update(_selected(name.strip() if isinstance(name, str) else name))
    if not found:
        raise RequestError(_no_workload(""))
    return tuple(found.values())


def workload_at(address: str) -> Workload:
    """In a worker process: the workload of this name, or one of the user's own as `MODULE:FOLDER`."""
    module, colon, folder = address.partition(":")
    if colon and module.startswith(_OWN):
        own: Workload = importlib.import_module(module).open_workload(folder)
        return own
    return find_workload(address)


def _selected(name: str) -> dict[str, Workload]:
    if name == "all":
        return {found: find_workload(found) for found in workload_names()}
    tasks = _family(name) if isinstance(name, str) else {}
    return dict(tasks) if tasks and name not in tasks else {name: find_workload(name)}


def _family(name: str) -> Mapping[str, Workload]:
    home = _FAMILIES.get(name)
    if home is None:
        return {}
    workloads: Mapping[str, Workload] = importlib.import_module(home).WORKLOADS
    return workloads


def _no_workload(name: object) -> str:
    return f"There is no workload {name!r}; choose one of: {', '.join(workload_names())}."
