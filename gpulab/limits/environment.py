"""The frameworks' own environment variables: those that cannot break a kernel, and never a user's own.

PYTORCH_CUDA_ALLOC_CONF is not among them: a key that the kernel's torch does not know is fatal at its
first use of CUDA.
"""

from collections.abc import Mapping

from gpulab import config
from gpulab.limits.pools import pool_bytes

__all__ = ["CUPY_LIMIT", "JAX_FRACTIONS", "MARK", "exchange", "ours", "variables", "without_limits"]

CUPY_LIMIT = "CUPY_GPU_MEMORY_LIMIT"
JAX_FRACTIONS = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")
"""JAX refuses to start with both; the first is read by old and new versions, so it is ours to set."""
MARK = "GPULAB_LIMIT_VARIABLES"
"""Names and values that gpulab has set: what differs from that is a user's own."""

_GROWTH = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def variables(
    memory_bytes: int | None, total_bytes: int | None, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What a process needs in its environment so that its frameworks grow, and stay within their pools.

    Parameters
    ----------
    memory_bytes
        The share of one GPU; None for growth without a cap.
    total_bytes
        The memory of the smallest device; None if unknown, and then JAX gets no fraction from here.
    environ
        The environment that they will be added to; default: this process's. A value in there that
        is not gpulab's own is left out of the answer.
    """
    env = config.inherited() if environ is None else environ
    mine = ours(env)
    wanted = dict(_GROWTH)
    if memory_bytes is not None:
        wanted[CUPY_LIMIT] = str(pool_bytes(memory_bytes))
        if total_bytes is not None and pool_bytes(memory_bytes) < total_bytes:
            wanted[JAX_FRACTIONS[0]] = _fraction(pool_bytes(memory_bytes), total_bytes)
    if any(name in env and name not in mine for name in JAX_FRACTIONS):
        wanted.pop(JAX_FRACTIONS[0], None)
    given = {name: value for name, value in wanted.items() if name not in env or name in mine}
    return {**given, MARK: " ".join(f"{name}={value}" for name, value in given.items())}


def ours(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables in there that gpulab has set and nobody has changed since."""
    noted = (entry.partition("=") for entry in environ.get(MARK, "").split())
    return {name: value for name, _, value in noted if environ.get(name) == value}


def without_limits(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy of the environment, less what gpulab has set in it for the frameworks."""
    gone = {*ours(environ), MARK}
    return {name: value for name, value in environ.items() if name not in gone}


def exchange(memory_bytes: int | None, total_bytes: int | None) -> None:
    """Bring this process's environment to a new cap. JAX's fraction stays where only the total is unknown."""
    env = config.inherited()
    mine = ours(env)
    new = variables(memory_bytes, total_bytes, env)
    fraction = mine.get(JAX_FRACTIONS[0])
    same = memory_bytes is not None and mine.get(CUPY_LIMIT) == new.get(CUPY_LIMIT)
    if total_bytes is None and same and fraction is not None:
        new[JAX_FRACTIONS[0]] = fraction
        new[MARK] += f" {JAX_FRACTIONS[0]}={fraction}"
    config.export({**dict.fromkeys(mine), **new})


def _fraction(part: int, total: int) -> str:
    """Rounded down, and never 0: XLA would take that for no fraction."""
    return f"{max(1, part * 10_000 // total) / 10_000:.4f}"
