"""The house: an import never points back up, and each door has one doorkeeper."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gpulab"
LAYERS = [
    {"errors"},
    {"config", "configfiles", "plotting", "rules", "settings", "units"},
    {"hardware"},
    {"limits"},
    {"allocation"},
    {"telemetry"},
    {"compare"},
    {"jupyter"},
    {"widgets"},
    {"commands", "cli"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
MODULES = sorted(PACKAGE.rglob("*.py"))


def layer_of(dotted: str) -> str | None:
    parts = dotted.split(".")
    return parts[1] if parts[0] == "gpulab" and len(parts) > 1 else None


def imports(path: Path) -> list[str]:
    """Every module that is imported anywhere in the file, also inside functions."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            found += [f"{module}.{alias.name}" for alias in node.names] if module == "gpulab" else [module]
    return found


ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


def environment_uses(code: str) -> list[int]:
    """The lines that reach for the environment, by an attribute or an import from `os`."""
    lines = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT:
            lines.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module in ("os", "posix", "nt"):
            names = {alias.name for alias in node.names}
            lines += [node.lineno] * bool(names & {*ENVIRONMENT, "*"})
    return lines


def own_layer(path: Path) -> str | None:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_never_point_back_up(path: Path) -> None:
    own = own_layer(path)
    if own in ("__init__", "__main__"):
        return  # the root only names what is below it
    for name in imports(path):
        other = layer_of(name)
        if other is not None and other != "__version__":
            assert RANK[other] <= RANK[own], f"{path.name} imports {name}, which is built on top of it"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_its_door_touches_nvml_and_only_config_the_environment(path: Path) -> None:
    if own_layer(path) != "hardware":
        assert not any(name.split(".")[0] == "pynvml" for name in imports(path))
    if path.name != "config.py":
        lines = environment_uses(path.read_text())
        assert not lines, f"{path.name}:{lines} reads the environment itself"


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.environ['HOME']",
        "import os as o; o.getenv('HOME')",
        "from os import environ",
        "def f():\n    from os import path, getenv as g",
        "from posix import environ as e",
        "from os import *",
    ],
)
def test_every_way_to_the_environment_is_seen(code: str) -> None:
    assert environment_uses(code)
    assert not environment_uses("import os; from os import path; os.getpid()")


def test_files_are_no_longer_than_one_job() -> None:
    long = {path.name: n for path in MODULES if (n := len(path.read_text().splitlines())) > 400}
    assert not long
