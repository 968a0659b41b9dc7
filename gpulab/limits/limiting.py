"""The two doors: a user's call, and the lease's share."""

from __future__ import annotations

import warnings

from gpulab import config
from gpulab.errors import RequestError
from gpulab.limits.pools import CONTEXT_BYTES, LEAST_MEMORY_BYTES, LEAST_POOL_BYTES
from gpulab.limits.state import Cap
from gpulab.limits.totals import count_in_mask, visible_devices
from gpulab.units import format_bytes, parse_bytes

__all__ = ["apply", "limit_memory"]


def limit_memory(size: int | str | None = None) -> None:
    """Let memory grow on demand, and cap the pools of every framework, already or later imported.

    The cap holds for each framework and each visible GPU in this process; it is cooperative. Of
    `size`, 0.6 GiB are left to CUDA's context and the libraries' workspaces, which no cap covers. A
    second call replaces the first. A framework that has started and takes no limit any more gives a
    warning with what to do; `%gpu limits` shows what is in force.

    Parameters
    ----------
    size
        Bytes, or text such as "8GiB"; None takes the share of this process's lease.

    Raises
    ------
    RequestError
        The size cannot be read, is too small to work with, or more than the GPU or the lease has; or
        there is no size and no share to take it from.
    """
    share = config.load().memory_limit
    if size is None and share is None:
        raise RequestError(
            "This process has no share of a GPU to take the limit from; "
            'name a size, such as gpulab.limit_memory("8GiB").'
        )
    memory = parse_bytes(size) if size is not None else share or 0
    _refuse_unusable(memory, share)
    devices = visible_devices()
    known = [d.memory.total_bytes for d in devices if d.memory.total_bytes is not None]
    total = min(known, default=None)
    if total is not None and memory > total:
        raise RequestError(
            f"{format_bytes(memory)} is more than the {format_bytes(total)} that the GPU has; ask for less."
        )
    _put(Cap(memory, total, len(devices) or count_in_mask(), by_user=True))


def apply(memory_bytes: int | None, total_bytes: int | None = None) -> None:
    """Put a lease's share in force in this process; None is a whole GPU: growth, and no cap. Raises nothing.

    Parameters
    ----------
    memory_bytes
        The share of one GPU.
    total_bytes
        The memory of the smallest leased device; None if it is not at hand.
    """
    if memory_bytes is not None and memory_bytes < LEAST_MEMORY_BYTES:
        warnings.warn(
            f"The share of {format_bytes(memory_bytes)} leaves no memory for pools beside CUDA's context "
            f"(about {format_bytes(CONTEXT_BYTES)}), so pools are capped at {format_bytes(LEAST_POOL_BYTES)} "
            "and this process will be over its share; take a larger one.",
            RuntimeWarning,
            stacklevel=2,
        )
    _put(Cap(memory_bytes, total_bytes, count_in_mask()))


def _refuse_unusable(memory: int, share: int | None) -> None:
    if memory < LEAST_MEMORY_BYTES:
        raise RequestError(
            f"{format_bytes(memory)} leaves nothing for memory pools beside CUDA's context, which takes "
            f"about {format_bytes(CONTEXT_BYTES)}; ask for at least 1GiB."
        )
    if share is not None and memory > share:
        raise RequestError(
            f"{format_bytes(memory)} is more than the {format_bytes(share)} of this process's lease; "
            "ask for less, or take a larger share."
        )


def _put(cap: Cap) -> None:
    from gpulab.limits.applying import put_in_force

    put_in_force(cap)
