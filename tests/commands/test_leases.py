"""`gpulab leases`: who holds what, without asking the driver."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpulab import config
from gpulab.hardware import nvml
from gpulab.hardware.record import publish

from .conftest import Run, Start

SHOW_AND_WAIT = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); input()"


def running(start: Start, *options: str) -> str:
    process = start("run", *options, "--", sys.executable, "-c", SHOW_AND_WAIT)
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_machine_without_leases_says_so_and_that_it_is_simulated(gpulab: Run) -> None:
    shown = gpulab("leases").stdout
    assert "No GPU is leased." in shown
    assert "(simulated machine, no real GPU)" in shown
    assert json.loads(gpulab("leases", "--json").stdout) == {
        "schema": "gpulab.leases/1",
        "leases": [],
        "waiting": [],
    }


def test_numbers_are_told_where_the_sampler_has_noted_them_else_why_not(start: Start, gpulab: Run) -> None:
    uuid = running(start, "--memory", "8GiB")
    shown = gpulab("leases").stdout
    assert f"          {uuid}" in shown
    assert "no sampler has noted the GPUs' numbers" in shown
    snapshot = nvml.snapshot()
    Path(config.load().machine_dir).mkdir(parents=True)
    publish(snapshot, config.load())
    device = snapshot.device(uuid)
    assert device is not None
    shown = gpulab("leases").stdout
    assert f"          GPU {device.index}  {uuid}" in shown
    assert "no sampler" not in shown
    assert "8.0 GiB  for" in shown
