"""`gpulab dashboard`."""

from gpulab.jupyter.dashboard import add_dashboard_arguments as add_arguments
from gpulab.jupyter.dashboard import run_dashboard as run

__all__ = ["add_arguments", "run"]
