"""Every exception of gpulab. Each message is one sentence: what happened, and what to do next."""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "GpulabError",
    "LeaseDirectoryError",
    "LeaseError",
    "MissingDependencyError",
    "NoFreeGpuError",
    "NoGpuError",
    "ParityError",
    "RequestError",
    "ScenarioError",
    "WorkloadError",
]


class GpulabError(Exception):
    """Base of all errors of gpulab; `exit_code` is what the command line ends with."""

    exit_code = 125


class RequestError(GpulabError, ValueError):
    """The request itself is wrong: an unknown policy, a size that cannot be read, a bad option."""

    exit_code = 64


class ConfigError(GpulabError, ValueError):
    """A configuration file or an environment variable has a value that gpulab cannot use."""

    exit_code = 64


class ScenarioError(ConfigError):
    """The description of the simulated machine is wrong."""


class NoGpuError(GpulabError):
    """This machine has no GPU that could ever serve the request."""

    exit_code = 69


class NoFreeGpuError(GpulabError):
    """The machine has such GPUs, but none is free now (or none became free in time)."""

    exit_code = 75


class LeaseError(GpulabError):
    """A lease cannot be taken, kept or given back."""


class LeaseDirectoryError(LeaseError):
    """The lease directory is missing, unsafe, or not ours to use."""


class MissingDependencyError(GpulabError, ImportError):
    """A package of an extra is needed here; the message names the extra."""


class WorkloadError(GpulabError):
    """A workload could not be prepared, measured or compared."""


class ParityError(WorkloadError):
    """Both sides ran, but their results are not the same."""
