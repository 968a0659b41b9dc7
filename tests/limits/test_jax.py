"""JAX's real module: the options that its own code makes for the GPU's client from what gpulab has set."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        importlib.util.find_spec("jax") is None,
        reason="jax is not installed; `make test-frameworks` runs this",
    ),
]

OPTIONS = """
def options():
    "What JAX hands to its GPU client, made by its own function from the environment of this moment."
    from jaxlib import xla_client
    return xla_client.generate_pjrt_gpu_plugin_options()
"""
Answer = Callable[[str], dict[str, Any]]
FRACTION = (8 * 2**30 - 6 * 2**30 // 10) / (80 * 2**30)
LEASE = "limits.apply(8 * 2**30, 80 * 2**30)\n"


@pytest.mark.parametrize("order", ["limit first", "import first"])
def test_its_gpu_client_would_get_the_fraction_and_no_preallocation(answer_of: Answer, order: str) -> None:
    code = [LEASE, "import jax\n"]
    answer = answer_of(
        OPTIONS
        + "".join(code if order == "limit first" else code[::-1])
        + "answer['options'], answer['state'] = options(), state('jax')['state']"
    )
    assert answer["options"]["memory_fraction"] == pytest.approx(FRACTION, abs=1e-4)
    assert answer["options"]["preallocate"] is False
    assert answer["state"] == "when CUDA starts"
    assert answer["warned"] == []


@pytest.mark.parametrize("name", ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"])
@pytest.mark.parametrize("when", ["before the limit", "before the import", "before the first operation"])
def test_a_users_fraction_wins_whenever_and_under_whichever_name_it_is_set(
    answer_of: Answer, name: str, when: str
) -> None:
    own = f"os.environ[{name!r}] = '0.5'\n"
    steps = {"before the limit": LEASE, "before the import": "import jax\n", "before the first operation": ""}
    code = "".join((own + text) if step == when else text for step, text in steps.items())
    answer = answer_of(
        OPTIONS + code + "answer['options'], answer['state'] = options(), state('jax')['state']"
    )
    assert answer["options"]["memory_fraction"] == 0.5, "with both names JAX would raise"


@pytest.mark.usefixtures("one_h100")
def test_where_only_the_share_is_known_the_fraction_is_reckoned_when_jax_is_imported(
    answer_of: Answer,
) -> None:
    answer = answer_of(
        OPTIONS
        + """
limits.apply(8 * 2**30)
answer["before"] = "XLA_PYTHON_CLIENT_MEM_FRACTION" in os.environ
import jax
answer["fraction"] = options()["memory_fraction"]
"""
    )
    assert answer["before"] is False
    assert answer["fraction"] == pytest.approx((8 - 0.6) / 79.6, abs=1e-3)


def test_where_the_gpus_memory_is_not_known_it_is_said_that_jax_only_grows(answer_of: Answer) -> None:
    answer = answer_of(
        OPTIONS
        + "limits.apply(8 * 2**30)\nimport jax\nanswer['options'], answer['state'] = options(), state('jax')"
    )
    assert "memory_fraction" not in answer["options"]
    assert answer["state"]["state"] == "not capped"
    assert "not known, so JAX only grows" in answer["state"]["remedy"]


def test_looking_at_the_limits_does_not_start_its_backends(answer_of: Answer) -> None:
    answer = answer_of(
        LEASE
        + """
import jax
answer["state"] = state("jax")
from jax._src import xla_bridge
answer["started"] = xla_bridge.backends_are_initialized()
"""
    )
    assert answer["started"] is False


def test_once_its_gpu_backend_is_up_another_limit_is_too_late(answer_of: Answer) -> None:
    answer = answer_of(
        LEASE
        + """
import jax, types
jax.numpy.ones(3)
gpu = types.SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": 7 * 2**30})
jax.local_devices = lambda: [gpu]  # the one thing that a machine without a GPU lacks
limits.apply(8 * 2**30, 80 * 2**30)
answer["same"] = state("jax")
limits.apply(4 * 2**30, 80 * 2**30)
answer["other"] = state("jax")
"""
    )
    assert answer["same"]["state"] == "in force"
    assert answer["same"]["in_force_bytes"] == 7 * 2**30
    assert answer["other"]["state"] == "too late"
    (sentence,) = answer["warned"]
    assert sentence == (
        "JAX has already started its backends, so its memory can no longer be limited in this process; "
        "restart the kernel, and take the GPU or call gpulab.limit_memory before that."
    )


def test_a_jax_on_the_cpu_is_not_capped_and_no_reason_to_complain(answer_of: Answer) -> None:
    answer = answer_of(
        "import jax\nanswer['sum'] = float(jax.numpy.ones(3).sum())\n"
        + LEASE
        + "answer['state'] = state('jax')"
    )
    if answer["state"]["state"] == "too late":
        pytest.skip("this JAX has a GPU")
    assert answer["state"]["remedy"] == "JAX runs on the CPU in this process."
    assert (answer["sum"], answer["warned"]) == (3.0, [])
