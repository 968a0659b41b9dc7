"""Public names exist, and importing gpulab costs next to nothing."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import gpulab

PACKAGE = Path(__file__).parents[1] / "gpulab"
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
)
HEAVY = {
    "pynvml",
    "traitlets",
    "psutil",
    "rich",
    "numpy",
    "pandas",
    "anywidget",
    "wrapt",
    "cupy",
    "cudf",
    "torch",
}


@pytest.mark.parametrize("name", gpulab.__all__)
def test_every_public_name_can_be_used(name: str) -> None:
    assert getattr(gpulab, name) is not None
    assert name in dir(gpulab)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        gpulab.nonsense  # noqa: B018


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_is_public(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    for public in module.__all__:
        assert hasattr(module, public), public


def loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout.splitlines()[-1]))


def test_importing_gpulab_loads_nothing_heavy() -> None:
    loaded = loaded_by("import gpulab")
    assert not loaded & HEAVY
    assert not {name for name in loaded if name.startswith("gpulab.")}


def test_the_way_of_gpulab_run_loads_only_what_it_needs() -> None:
    loaded = loaded_by("import gpulab.cli, gpulab.commands.run")
    assert not loaded & (HEAVY | {"dataclasses", "sqlite3", "asyncio", "tomllib", "platformdirs"})
