"""What Binder is given: files that it reads as meant, that hide no failure, and that pretend no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
BINDER = ROOT / "binder"
SCRIPTS = ("postBuild", "start")
HEAVY = {"cudf", "cuml", "cupy", "pytorch", "torch", "tensorflow", "jax", "rapids"}
CONDA_NAMES = {"matplotlib-base": "matplotlib"}


def environment(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def packages(path: Path) -> dict[str, str]:
    """Name and version of each, conda's and pip's, as PyPI spells the names."""
    entries = environment(path)["dependencies"]
    lines = [entry for entry in entries if isinstance(entry, str)]
    lines += [line for entry in entries if isinstance(entry, dict) for line in entry["pip"]]
    split = [
        re.fullmatch(r"([A-Za-z0-9_.-]+?)\s*([<>=!].*)?", line) for line in lines if not line.startswith("-")
    ]
    found = [(m.group(1).lower().replace("_", "-"), m.group(2) or "") for m in split if m is not None]
    return {CONDA_NAMES.get(name, name): version for name, version in found}


def project() -> dict[str, str]:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    return dict(re.match(r"([A-Za-z0-9_.-]+)(.*)", line).groups() for line in declared)  # type: ignore[union-attr]


def test_python_is_named_exactly_because_binder_ignores_anything_else() -> None:
    assert re.fullmatch(r"=3\.1[1-4]", packages(BINDER / "environment.yml")["python"])


def test_nothing_is_there_that_needs_a_gpu_or_would_break_the_build_by_its_size() -> None:
    assert not HEAVY & set(packages(BINDER / "environment.yml"))
    assert environment(BINDER / "environment.yml")["channels"] == ["conda-forge"]


def test_it_holds_what_gpulab_needs_because_postbuild_installs_without_dependencies() -> None:
    there = packages(BINDER / "environment.yml")
    assert {name: there.get(name) for name in project()} == project()


def test_the_conda_environment_for_gpus_holds_both_sides_and_gpulab_itself() -> None:
    there = packages(ROOT / "environment.yml")
    assert {"cudf", "cuml", "cupy", "scikit-learn", "jupyterlab", "voila", "nvidia-ml-py", "pytest"} <= set(
        there
    )
    assert {"pip": ["-e ."]} in environment(ROOT / "environment.yml")["dependencies"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_executable_stops_at_the_first_failure_and_parses(name: str) -> None:
    path = BINDER / name
    assert os.access(path, os.X_OK)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/bin/bash"
    assert "set -euo pipefail" in lines
    subprocess.run(["bash", "-n", path], check=True)


def test_start_becomes_the_server_and_pretends_no_gpu() -> None:
    lines = (BINDER / "start").read_text(encoding="utf-8").split("\n")
    assert lines[-2:] == ['exec "$@"', ""]
    assert not any("SIMULATE" in line or "CUDA" in line for line in lines)
    done = subprocess.run([BINDER / "start", "echo", "two words"], capture_output=True, text=True, check=True)
    assert done.stdout == "two words\n"


def test_git_keeps_the_executable_bits() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-s", "binder"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    modes = {line.split("\t")[1]: line.split()[0] for line in listed.stdout.splitlines()}
    assert {name: modes.get(f"binder/{name}") for name in SCRIPTS} == dict.fromkeys(SCRIPTS, "100755")
