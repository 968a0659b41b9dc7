"""`gpulab resume`: end a pause; samplers take up NVML again within a second."""

from __future__ import annotations

import argparse

from gpulab import config
from gpulab.hardware import pausing

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `gpulab resume` is told: nothing."""
    parser.epilog = "Ends the pause of this account; as root also the host's."


def run(_: argparse.Namespace) -> int:
    """End every pause that is this account's to end. Raises GpulabError if one holds on."""
    ended = pausing.resume(config.unruled())
    print("Resumed: the GPUs are asked again." if ended else "Nothing was paused.")
    return 0
