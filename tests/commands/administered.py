"""The command on a machine that has an administrator, with a rules file of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

IS_ROOT = os.geteuid() == 0
_AS_IF = """
import sys
from gpulab import config, configfiles
config.ADMIN_FILE, configfiles.ROOT = sys.argv[1], int(sys.argv[2])
sys.argv = ["gpulab", *sys.argv[3:]]
from gpulab.cli import main
sys.exit(main())
"""


def command(rules: Path | None, *words: str, root: int | None = None) -> list[str]:
    """`gpulab WORDS` with `rules` as the administrator's file, which `root` (default: this account) owns."""
    if rules is None:
        return [sys.executable, "-m", "gpulab", *words]
    return [sys.executable, "-c", _AS_IF, str(rules), str(os.getuid() if root is None else root), *words]


def run(rules: Path | None, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(rules, *words), capture_output=True, text=True, timeout=60, check=False, **options
    )


_AS_ANOTHER = """
import contextlib, grp, importlib, io, os, pwd, sys, tomllib, traceback
from gpulab import config, configfiles, rules, cli
importlib.import_module(f"gpulab.commands.{sys.argv[4]}")
with contextlib.redirect_stdout(io.StringIO()):  # imports the rest: it may lie where another may not read
    cli.main(sys.argv[4:] if sys.argv[4] in ("status", "leases") else ["status", "--json"])
uid = int(sys.argv[1])
config.ADMIN_FILE = sys.argv[2]
os.environ.update(HOME=sys.argv[3], GPULAB_DATA_DIR=sys.argv[3] + "/data", XDG_CONFIG_HOME=sys.argv[3])
os.chdir("/")
os.umask(0o077)
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
sys.argv = ["gpulab", *sys.argv[4:]]
sys.exit(cli.main())
"""


def command_as(uid: int, *words: str, home: Path, rules: Path | None = None) -> list[str]:
    """`gpulab WORDS` as another account with umask 077; it needs root, and a `home` where that may go."""
    home.mkdir(exist_ok=True)
    os.chown(home, uid, uid)
    admin = str(rules or home / "no-rules" / "config.toml")
    return [sys.executable, "-c", _AS_ANOTHER, str(uid), admin, str(home), *words]


def run_as(uid: int, *words: str, home: Path, rules: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command_as(uid, *words, home=home, rules=rules),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    """What a command says when it runs: it holds its GPU then."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, process.stderr.read() if process.stderr else "it said nothing"
    return line


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process that is not our child ends in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False
