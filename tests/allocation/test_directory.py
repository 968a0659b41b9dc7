"""Where leases lie, and which directories are refused with which sentence."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpulab import config
from gpulab.allocation.directory import find, set_up_host
from gpulab.config import Settings
from gpulab.errors import LeaseDirectoryError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second account")
STRANGER = 54321


def settings(path: Path) -> Settings:
    return config.load()._replace(lease_dir=str(path))


def test_an_own_directory_is_of_this_account_and_made_when_missing(tmp_path: Path) -> None:
    directory = find(settings(tmp_path / "new" / "leases"))
    assert directory.scope == "account"
    assert stat.S_IMODE(os.stat(directory.path).st_mode) == 0o700


def test_without_a_setting_leases_lie_below_the_runtime_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPULAB_LEASE_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert find(config.load()).path == str(tmp_path / "gpulab" / "leases")


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(LeaseDirectoryError, match=r"is a link; name the real directory in GPULAB_LEASE_DIR"):
        find(settings(tmp_path / "link"))


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LeaseDirectoryError, match="is no directory"):
        find(settings(tmp_path / "file"))


@needs_root
def test_the_directory_of_another_account_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    os.chown(other, STRANGER, STRANGER)
    with pytest.raises(LeaseDirectoryError, match=f"belongs to user {STRANGER}; set GPULAB_LEASE_DIR"):
        find(settings(other))


@needs_root
def test_a_directory_in_which_users_could_delete_each_others_leases_is_refused(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    with pytest.raises(LeaseDirectoryError, match="no sticky bit"):
        find(settings(loose))


@needs_root
def test_setup_makes_a_directory_of_the_host_that_another_account_can_use(passable: Path) -> None:
    path = passable / "run"
    set_up_host(str(path))
    assert find(settings(path)).scope == "host"
    assert stat.S_IMODE((path / "guard").stat().st_mode) == 0o444
    code = (
        "import os, random, pwd\n"
        "from gpulab import config\n"
        "from gpulab.allocation import directory, leases\n"
        f"os.setgid({STRANGER}); os.setuid({STRANGER})\n"
        f"found = directory.find(config.load()._replace(lease_dir={str(path)!r}))\n"
        "with leases.guard(found):\n"
        "    leases.take(found, gpus=('GPU-a',), mode='exclusive', memory_bytes=None, priority='normal')\n"
        "print(found.scope, leases.live(found)[0].uid)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["host", str(STRANGER)]


@needs_root
def test_a_directory_of_the_host_without_its_guard_says_how_to_repair_it(tmp_path: Path) -> None:
    path = tmp_path / "run"
    set_up_host(str(path))
    (path / "guard").unlink()
    (path / "guard").symlink_to("/etc/passwd")
    with pytest.raises(LeaseDirectoryError, match="run `sudo gpulab setup`"):
        find(settings(path)).open_guard()
