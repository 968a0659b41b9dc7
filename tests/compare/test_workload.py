"""The registry, and what a backend says before anything is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpulab.compare.backend import Backend
from gpulab.compare.workload import find_workload, workload_names
from gpulab.errors import RequestError


@pytest.mark.parametrize("name", workload_names())
def test_every_workload_has_both_sides_a_lesson_and_rising_sizes(name: str) -> None:
    workload = find_workload(name)
    assert workload.name == name
    assert workload.teaches.endswith(".")
    assert {backend.side for backend in workload.backends} == {"cpu", "gpu"}
    assert list(workload.sizes) == sorted(set(workload.sizes))
    assert workload.pilot_size <= workload.sizes[0]
    names = [backend.name for backend in workload.backends]
    assert len(set(names)) == len(names)


def test_an_unknown_or_unusable_name_says_which_there_are() -> None:
    for name in ("kmeans", "", None):
        with pytest.raises(RequestError, match="choose one of: dbscan"):
            find_workload(name)  # type: ignore[arg-type]


def test_a_library_that_is_not_there_is_found_missing_without_an_import() -> None:
    backend = Backend()
    backend.modules, backend.remedy = ("json", "no_such_library.part"), "install it"
    assert backend.missing() == "no_such_library is not installed; install it"
    backend.modules = ("json",)
    assert backend.missing() is None


def test_finding_a_workload_imports_no_numeric_library() -> None:
    code = (
        "import sys\nfrom gpulab.compare.workload import find_workload\nw = find_workload('dbscan')\n"
        "[b.missing() for b in w.backends]\n"
        "print([m for m in ('numpy', 'sklearn', 'scipy', 'matplotlib', 'cupy', 'cuml') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
