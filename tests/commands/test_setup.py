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
        "etc/tmpfiles.d/gpulab-host.conf": 0o644,
        "etc/tmpfiles.d/gpulab.conf": 0o644,
        "run": 0o755,
        "run/gpulab": 0o1777,
        "run/gpulab/guard": 0o444,
        "run/gpulab/host": 0o755,
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


def test_the_group_of_the_service_may_publish_as_soon_as_there_is_one(gpulab: Run, tmp_path: Path) -> None:
    root = tmp_path / "image"
    assert gpulab("setup", "--root", str(root)).returncode == 0
    told = root / "etc/tmpfiles.d/gpulab-host.conf"
    assert "d /run/gpulab/host 0755 root root -" in told.read_text()
    (root / "etc/group").write_text("root:x:0:\ngpulab:x:7654:\n")
    result = gpulab("setup", "--root", str(root))
    assert result.returncode == 0, result.stderr
    host = (root / "run/gpulab/host").stat()
    assert (host.st_mode & 0o7777, host.st_uid, host.st_gid) == (0o775, 0, 7654)
    assert "d /run/gpulab/host 0775 root gpulab -" in told.read_text()
    told.write_text("# mine\n")
    assert gpulab("setup", "--root", str(root)).returncode == 0
    assert told.read_text() == "# mine\n"


def test_setup_believes_no_host_directory_that_another_account_has_made(gpulab: Run, tmp_path: Path) -> None:
    root = tmp_path / "image"
    assert gpulab("setup", "--root", str(root)).returncode == 0
    host = root / "run/gpulab/host"
    os.chown(host, 7654, 7654)
    result = gpulab("setup", "--root", str(root))
    assert result.returncode == 125
    assert "is no directory of root's; remove it and run setup again" in result.stderr
    assert host.stat().st_uid == 7654
