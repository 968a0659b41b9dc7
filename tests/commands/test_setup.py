"""`gpulab setup` prepares a host, or an image of one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .conftest import Run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="setup needs root")


def test_what_setup_makes_can_be_read_by_all_whatever_the_umask(gpulab: Run, tmp_path: Path) -> None:
    root = tmp_path / "image"
    before = os.umask(0o077)
    try:
        assert gpulab("setup", "--root", str(root)).returncode == 0
    finally:
        os.umask(before)
    modes = {str(p.relative_to(root)): p.stat().st_mode & 0o7777 for p in [root, *root.rglob("*")]}
    assert modes == {
        ".": 0o755,
        "etc": 0o755,
        "etc/gpulab": 0o755,
        "etc/gpulab/config.toml": 0o644,
        "etc/tmpfiles.d": 0o755,
        "etc/tmpfiles.d/gpulab.conf": 0o644,
        "run": 0o755,
        "run/gpulab": 0o1777,
        "run/gpulab/guard": 0o444,
    }


def test_setup_prepares_the_host_and_keeps_an_existing_configuration(gpulab: Run, tmp_path: Path) -> None:
    root = tmp_path / "image"
    assert gpulab("setup", "--root", str(root)).returncode == 0
    assert (root / "run/gpulab").stat().st_mode & 0o7777 == 0o1777
    assert (root / "run/gpulab/guard").stat().st_mode & 0o777 == 0o444
    assert "d /run/gpulab 1777 root root" in (root / "etc/tmpfiles.d/gpulab.conf").read_text()
    rules = root / "etc/gpulab/config.toml"
    rules.write_text('drained = ["GPU-1"]\n')
    assert gpulab("setup", "--root", str(root)).returncode == 0
    assert rules.read_text() == 'drained = ["GPU-1"]\n'
