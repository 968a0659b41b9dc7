"""From the memory of a lease to the pool that a framework may fill."""

from __future__ import annotations

__all__ = ["CONTEXT_BYTES", "LEAST_MEMORY_BYTES", "LEAST_POOL_BYTES", "pool_bytes"]

CONTEXT_BYTES = 6 * 2**30 // 10
"""What CUDA's context and the libraries' own workspaces take beside the pools, which no cap covers."""
LEAST_POOL_BYTES = 64 * 2**20
"""Below this no framework does anything, so no pool is made smaller."""
LEAST_MEMORY_BYTES = CONTEXT_BYTES + LEAST_POOL_BYTES


def pool_bytes(memory_bytes: int) -> int:
    """The cap of each framework's pool, in bytes, for a share of `memory_bytes`.

    A share that leaves less than LEAST_POOL_BYTES beside the context gets that: the process will
    then be over its share, and NVML's figure shows it.
    """
    return max(memory_bytes - CONTEXT_BYTES, LEAST_POOL_BYTES)
