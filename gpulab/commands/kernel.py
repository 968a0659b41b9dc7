"""`gpulab kernel`."""

from gpulab.jupyter.command import add_arguments, run

__all__ = ["add_arguments", "run"]
