"""`gpulab lab`."""

from gpulab.jupyter.launch import add_lab_arguments as add_arguments
from gpulab.jupyter.launch import run_lab as run

__all__ = ["add_arguments", "run"]
