"""What a share leaves for pools."""

from __future__ import annotations

from gpulab.limits import pool_bytes
from gpulab.limits.pools import CONTEXT_BYTES, LEAST_POOL_BYTES


def test_a_pool_is_the_share_less_what_the_context_takes() -> None:
    assert pool_bytes(8 * 2**30) == 8 * 2**30 - CONTEXT_BYTES


def test_a_share_too_small_for_the_context_still_gets_a_pool_that_works() -> None:
    assert pool_bytes(256 * 2**20) == LEAST_POOL_BYTES
