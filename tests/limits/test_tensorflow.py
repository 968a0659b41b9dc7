"""TensorFlow's real module: the logical devices that it is given in the moment its context starts.

Its CPU build lists no GPU, so a real physical device of type GPU is added to its context; TensorFlow's own
checks then run on what gpulab asks of it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None,
        reason="tensorflow is not installed; `make test-frameworks` runs this",
    ),
    pytest.mark.usefixtures("one_h100"),
]

GPUS = """
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
from tensorflow.python.eager import context

def with_two_gpus():
    "Two GPUs in the list of a context that has not started."
    this = context.context()
    this._initialize_physical_devices()
    this._physical_devices += [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in (0, 1)]
    gpus = this._physical_devices[-2:]
    this._visible_device_list += gpus
    this._memory_growth_map.update(dict.fromkeys(gpus))
    return gpus

def started_with():
    "The limits in the options that TensorFlow starts its runtime with, in MiB."
    devices = context.context().config.gpu_options.experimental.virtual_devices
    return [list(entry.memory_limit_mb) for entry in devices]

def limits_of(gpus):
    found = [tf.config.get_logical_device_configuration(gpu) for gpu in gpus]
    return [entry and [device.memory_limit for device in entry] for entry in found]
"""
Answer = Callable[[str], dict[str, Any]]
MIB = (8 * 2**30 - 6 * 2**30 // 10) >> 20


def test_every_gpu_gets_one_logical_device_of_the_pools_size_when_the_context_starts(
    answer_of: Answer,
) -> None:
    answer = answer_of(
        'gpulab.limit_memory("8GiB")'
        + GPUS
        + """
gpus = with_two_gpus()
answer["before"] = limits_of(gpus), state("tensorflow")["state"]
answer["sum"] = float(tf.reduce_sum(tf.ones(3)))
answer["after"], answer["state"] = limits_of(gpus), state("tensorflow")
answer["started_with"] = started_with()
answer["growth"] = os.environ["TF_FORCE_GPU_ALLOW_GROWTH"]
answer["aside"] = context.Context.ensure_initialized.__module__
"""
    )
    assert answer["before"] == [[None, None], "when CUDA starts"]
    assert answer["after"] == answer["started_with"] == [[MIB], [MIB]]
    assert answer["state"]["state"] == "in force"
    assert answer["state"]["in_force_bytes"] == MIB * 2**20
    assert (answer["sum"], answer["growth"]) == (3.0, "true")
    assert answer["aside"] == "tensorflow.python.eager.context", "nothing of ours stays in TensorFlow's way"
    assert answer["warned"] == []


def test_memory_growth_that_a_user_sets_before_the_first_operation_still_works(answer_of: Answer) -> None:
    answer = answer_of(
        'gpulab.limit_memory("8GiB")'
        + GPUS
        + """
gpus = with_two_gpus()
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
answer["sum"] = float(tf.reduce_sum(tf.ones(3)))
answer["limits"] = limits_of(gpus)
"""
    )
    assert answer["limits"] == [[MIB], [MIB]]
    assert answer["sum"] == 3.0


def test_a_users_own_logical_devices_are_kept(answer_of: Answer) -> None:
    answer = answer_of(
        'gpulab.limit_memory("8GiB")'
        + GPUS
        + """
gpus = with_two_gpus()
for gpu in gpus:
    own = tf.config.LogicalDeviceConfiguration(memory_limit=1000)
    tf.config.set_logical_device_configuration(gpu, [own])
tf.ones(3)
answer["limits"], answer["state"] = limits_of(gpus), state("tensorflow")["state"]
"""
    )
    assert answer["limits"] == [[1000], [1000]]
    assert answer["state"] == "own limit"


def test_once_it_has_started_it_is_too_late_and_said_with_what_to_do(answer_of: Answer) -> None:
    answer = answer_of(
        GPUS
        + """
gpus = with_two_gpus()
tf.ones(3)
gpulab.limit_memory("8GiB")
answer["state"], answer["limits"] = state("tensorflow"), limits_of(gpus)
"""
    )
    assert answer["state"]["state"] == "too late"
    assert answer["limits"] == [None, None]
    (sentence,) = answer["warned"]
    assert sentence == (
        "TensorFlow has already started, so its memory can no longer be limited in this process; restart the "
        "kernel, and take the GPU or call gpulab.limit_memory before that."
    )


def test_the_same_limit_again_after_the_start_is_no_reason_to_complain(answer_of: Answer) -> None:
    answer = answer_of(
        GPUS
        + """
with_two_gpus()
gpulab.limit_memory("8GiB")
tf.ones(3)
gpulab.limit_memory("8GiB")
answer["same"] = state("tensorflow")["state"]
gpulab.limit_memory("4GiB")
answer["other"] = state("tensorflow")["state"]
"""
    )
    assert (answer["same"], answer["other"]) == ("in force", "too late")
    assert len(answer["warned"]) == 1


def test_a_tensorflow_without_a_gpu_is_not_capped_and_works(answer_of: Answer) -> None:
    answer = answer_of(
        'gpulab.limit_memory("8GiB")'
        + GPUS
        + "answer['sum'] = float(tf.reduce_sum(tf.ones(3))); answer['state'] = state('tensorflow')"
    )
    assert answer["sum"] == 3.0
    assert answer["state"]["remedy"] == "TensorFlow sees no GPU in this process."


def test_a_tensorflow_that_changed_is_said_once_and_goes_on(answer_of: Answer) -> None:
    answer = answer_of(
        GPUS
        + """
with_two_gpus()
del tf.config.LogicalDeviceConfiguration
gpulab.limit_memory("8GiB")
answer["sum"] = float(tf.reduce_sum(tf.ones(3)))
answer["state"] = state("tensorflow")["state"]
"""
    )
    assert (answer["sum"], answer["state"]) == (3.0, "failed")
    (sentence,) = answer["warned"]
    assert "tf.config.set_logical_device_configuration yourself" in sentence
