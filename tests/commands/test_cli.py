"""The command itself: what it says of unknown words, and what nobody expected."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpulab.cli import COMMANDS

from .conftest import Run


def test_an_unknown_command_and_a_wrong_option_are_64(gpulab: Run) -> None:
    for words in (("nonsense",), ("status", "--nonsense"), ("leases", "extra")):
        result = gpulab(*words)
        assert (result.returncode, result.stdout) == (64, "")
        assert len(result.stderr.splitlines()) == 1


def test_help_lists_every_command(gpulab: Run) -> None:
    text = gpulab("--help").stdout
    assert all(name in text for name in COMMANDS)
    for name in COMMANDS:
        assert gpulab(name, "--help").returncode == 0


BROKEN = """
import json, sys
def dumps(report): raise ValueError("two\\nlines")
json.dumps = dumps
from gpulab.cli import main
sys.argv = ["gpulab", "leases", "--json"]
sys.exit(main())
"""


def test_what_nobody_expected_is_one_line_and_125() -> None:
    result = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (125, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("gpulab: ValueError: two lines (leases.py:")
    assert "report" in line


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this test writes to a full device")
def test_output_that_cannot_be_written_is_one_line_and_125() -> None:
    command = [sys.executable, "-m", "gpulab", "leases", "--json"]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 125
    assert len(result.stderr.splitlines()) == 1
    assert "No space left on device" in result.stderr
