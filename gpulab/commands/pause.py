"""`gpulab pause`: let go of NVML until `gpulab resume`, so that a GPU can be reset."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from gpulab import config
from gpulab.allocation.leases import live_leases
from gpulab.allocation.status import leases_report
from gpulab.commands.leases import holding_lines
from gpulab.errors import ConfigError
from gpulab.hardware import pausing

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `gpulab pause` is told: nothing."""
    parser.epilog = (
        "As root, where leases are host-wide, it holds for every account of this host; else for this one. "
        "Until `gpulab resume` no sampler and no command of gpulab asks the driver, and who waits for a GPU "
        "waits on. A reset needs more: programs that use the GPU, and other monitors, must end too."
    )


def run(_: argparse.Namespace) -> int:
    """Begin a pause. Raises GpulabError if its marker cannot be written."""
    found = pausing.pause(config.unruled())  # rules that cannot be read are no reason to hold a GPU
    print(f"{found} A GPU can be reset once the programs on it, and other monitors, have ended.")
    for line in _holding():
        print(line)
    return 0


def _holding() -> Iterator[str]:
    """Whom to ask, as far as the rules let this account know it."""
    try:
        settings = config.load()
    except ConfigError:
        return
    leases = live_leases(settings)
    yield from holding_lines(leases_report(leases, settings)["leases"])
