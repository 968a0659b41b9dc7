"""Does a GPU pay for this work? The same work on CPU and GPU, measured in pairs, its results compared.

`gpulab.compare("dbscan", sizes=[1e3, 1e4])` measures; `gpulab.compare.load(path)` reads a saved result.
See `gpulab.compare.compare` for the parameters: this package is callable and stands for that function.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpulab.compare.result import Result

__all__ = ["DEFAULT_BUDGET", "compare", "load"]

DEFAULT_BUDGET = 60.0


def compare(
    workload: str,
    /,
    sizes: Iterable[int | float | str] | None = None,
    *,
    backends: Iterable[str] | None = None,
    budget: float = DEFAULT_BUDGET,
    seed: int = 0,
    progress: bool = True,
) -> Result:
    """Measure a workload on the CPU and, where there is one, on the GPU.

    Parameters
    ----------
    workload
        The name of a workload, for example "dbscan"; `gpulab compare --list` shows them.
    sizes
        Numbers of rows or points; None means the workload's own.
    backends
        Names of backends; None means all. The best CPU backend is found by a race at each size.
    budget
        Seconds for measuring, over all sizes; starting the workers comes on top (each imports its library
        and makes two small calls, some seconds), and the last results are compared past it. A size that
        is forecast to break it is not run, and says so. One that is begun gets the six repeats that an
        interval needs, even if the forecast was too low, until a call is ended 5 s after the budget.
    seed
        Of the data; the same seed gives the same data on every machine.
    progress
        Show a progress bar, in a notebook or a terminal.

    Returns
    -------
    Result
        Frozen. After an interrupt it holds what was measured until then.

    Raises
    ------
    RequestError
        Unknown workload or backend, or a size or budget that cannot be used; the message says what can.
    WorkloadError
        No backend could be started.
    """
    from gpulab.compare.measure import measure

    return measure(workload, sizes=sizes, backends=backends, budget=budget, seed=seed, progress=progress)


def load(path: str | os.PathLike[str]) -> Result:
    """Read a saved result; what was measured then is `recorded` now. Raises WorkloadError."""
    from gpulab.compare.result import load as load_result

    return load_result(path)


_measure = compare


class _CallableModule(ModuleType):
    def __call__(
        self, workload: str, /, sizes: Iterable[int | float | str] | None = None, **options: Any
    ) -> Result:
        return _measure(workload, sizes, **options)


# `import gpulab.compare` binds this module to the name under which gpulab offers the function. So both are
# one object, whatever is imported first.
sys.modules[__name__].__class__ = _CallableModule
_CallableModule.__call__.__doc__ = _measure.__doc__
globals()["compare"] = sys.modules[__name__]
