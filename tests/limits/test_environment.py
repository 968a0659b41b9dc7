"""The frameworks' variables: which are set, and that a user's own are never touched."""

from __future__ import annotations

import pytest

from gpulab import config
from gpulab.limits import pool_bytes, variables, without_limits
from gpulab.limits.environment import exchange

GIB = 2**30


def test_a_share_sets_growth_a_fraction_for_jax_and_bytes_for_cupy() -> None:
    given = variables(8 * GIB, 80 * GIB, {})
    assert given["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert given["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert given["CUPY_GPU_MEMORY_LIMIT"] == str(pool_bytes(8 * GIB))
    fraction = float(given["XLA_PYTHON_CLIENT_MEM_FRACTION"])
    assert 0.99 * pool_bytes(8 * GIB) < fraction * 80 * GIB <= pool_bytes(8 * GIB), "never more than the cap"


def test_a_whole_gpu_gets_growth_and_no_cap() -> None:
    given = variables(None, 80 * GIB, {})
    assert given["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert not {"XLA_PYTHON_CLIENT_MEM_FRACTION", "CUPY_GPU_MEMORY_LIMIT"} & set(given)


def test_where_the_gpus_memory_is_unknown_no_fraction_is_made_up() -> None:
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in variables(8 * GIB, None, {})


def test_a_fraction_never_reaches_one_where_xla_would_use_the_hosts_memory() -> None:
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in variables(81 * GIB, 80 * GIB, {})


def test_no_allocator_variable_of_torch_is_set_for_it_could_stop_a_kernel() -> None:
    assert not [name for name in variables(8 * GIB, 80 * GIB, {}) if "ALLOC_CONF" in name]


@pytest.mark.parametrize("name", ["XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"])
def test_a_users_fraction_under_either_name_stays_alone(name: str) -> None:
    given = variables(8 * GIB, 80 * GIB, {name: "0.5"})
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in given
    assert "XLA_CLIENT_MEM_FRACTION" not in given


@pytest.mark.parametrize(
    "name", ["XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH", "CUPY_GPU_MEMORY_LIMIT"]
)
def test_a_users_own_value_is_not_overwritten(name: str) -> None:
    assert name not in variables(8 * GIB, 80 * GIB, {name: "theirs"})


def test_gpulabs_own_values_are_replaced_by_the_next_share() -> None:
    first = variables(8 * GIB, 80 * GIB, {})
    second = variables(4 * GIB, 80 * GIB, first)
    assert second["CUPY_GPU_MEMORY_LIMIT"] == str(pool_bytes(4 * GIB))
    assert second["XLA_PYTHON_CLIENT_MEM_FRACTION"] < first["XLA_PYTHON_CLIENT_MEM_FRACTION"]


def test_a_value_that_a_user_changed_since_counts_as_theirs() -> None:
    env = {**variables(8 * GIB, 80 * GIB, {}), "CUPY_GPU_MEMORY_LIMIT": "1000"}
    assert "CUPY_GPU_MEMORY_LIMIT" not in variables(4 * GIB, 80 * GIB, env)


def test_a_child_without_the_lease_gets_none_of_its_limits_and_keeps_a_users_own() -> None:
    env = {**variables(8 * GIB, 80 * GIB, {}), "HOME": "/home/u", "XLA_PYTHON_CLIENT_PREALLOCATE": "true"}
    assert without_limits(env) == {"HOME": "/home/u", "XLA_PYTHON_CLIENT_PREALLOCATE": "true"}


def test_the_leases_fraction_survives_a_call_that_does_not_know_the_gpus_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables(8 * GIB, 80 * GIB, {}).items():
        monkeypatch.setenv(name, value)
    before = config.inherited()["XLA_PYTHON_CLIENT_MEM_FRACTION"]
    exchange(8 * GIB, None)
    assert config.inherited()["XLA_PYTHON_CLIENT_MEM_FRACTION"] == before
    exchange(None, None)
    assert not {"XLA_PYTHON_CLIENT_MEM_FRACTION", "CUPY_GPU_MEMORY_LIMIT"} & set(config.inherited())
