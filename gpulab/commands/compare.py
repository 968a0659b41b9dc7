"""`gpulab compare`."""

from gpulab.compare.command import add_arguments, run

__all__ = ["add_arguments", "run"]
