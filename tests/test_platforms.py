"""Where leases do not work, gpulab imports, says so, and compares on the CPU.

The other systems are imitated as far as Python shows them: their name, and the modules and
functions that they lack.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

ELSEWHERE = """
import argparse, asyncio, ctypes.util, json, logging, os, platform, random, shutil
import socket, subprocess, sys, tempfile
import multiprocessing.util, pathlib, threading, uuid, platformdirs
sys.platform = {name!r}
if {name!r} == "win32":
    for module in ("fcntl", "pwd"):
        sys.modules[module] = None
    for function in ("getuid", "geteuid", "register_at_fork", "fchmod", "uname", "set_inheritable"):
        if hasattr(os, function):
            delattr(os, function)
import gpulab, gpulab.cli
from gpulab.errors import GpulabError
"""


def elsewhere(name: str, code: str) -> subprocess.CompletedProcess[str]:
    script = ELSEWHERE.format(name=name) + code
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["darwin", "win32"])
def test_the_package_imports_and_every_public_name_is_there(name: str) -> None:
    result = elsewhere(name, "print([getattr(gpulab, n) is not None for n in gpulab.__all__])")
    assert result.returncode == 0, result.stderr
    assert "False" not in result.stdout


@pytest.mark.parametrize("name", ["darwin", "win32"])
def test_acquire_and_leases_say_that_they_need_linux(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "1xt4")
    code = "try:\n    gpulab.acquire()\nexcept GpulabError as error:\n    print(error)\n"
    assert "Leases need Linux" in elsewhere(name, code).stdout
    result = elsewhere(name, "raise SystemExit(gpulab.cli.main(['leases']))")
    assert result.returncode == 125
    assert "Leases need Linux" in result.stderr


@pytest.mark.parametrize("name", ["darwin", "win32"])
def test_a_snapshot_says_why_there_is_no_gpu(name: str) -> None:
    result = elsewhere(name, "s = gpulab.snapshot(); print(s.driver.state, s.devices)")
    assert result.stdout.split()[0] in ("no_library", "ok"), result.stderr
