"""Drivers that hang, threads that look at once, and forked children: nobody waits longer than he said."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from gpulab.hardware import nvml

from .conftest import Machine, MachineFile, eventually

look = nvml.snapshot
H100 = {"profile": "h100"}


def test_a_driver_that_hangs_at_its_start_costs_the_timeout_and_no_more(machine: Machine) -> None:
    file = machine(faults=[{"call": "nvmlInit*", "hang": True}], call_log="calls")
    start = time.monotonic()
    assert look(timeout=0.2).driver.state == "unresponsive"
    for _ in range(5):
        assert look(timeout=30).driver.state == "unresponsive", "nobody waits for it a second time"
    assert time.monotonic() - start < 20
    assert len(file.calls()) == 1
    file.write()
    assert eventually(lambda: look().driver.ok)


def test_a_gpu_that_hangs_is_unresponsive_and_the_others_are_told_whole(machine: Machine) -> None:
    devices = [{"profile": "h100", "count": 3, "utilization": 7}]
    file = machine(devices=devices)
    uuids = [device.uuid for device in look().devices]
    file.write(devices=devices, faults=[{"call": "nvmlDeviceGetUtilizationRates", "gpu": 1, "hang": True}])
    found = look(timeout=1.0).devices
    assert [device.state for device in found] == ["ok", "unresponsive", "ok"]
    assert [device.uuid for device in found] == uuids
    assert [device.gpu_percent for device in found] == [7, None, 7]
    assert found[1].memory.used_bytes is None, "nothing that could pass for its present load"
    assert "did not answer within 1 s" in found[1].message


def test_a_gpu_that_still_hangs_is_not_asked_again_until_it_returns(machine: Machine) -> None:
    fault = {"call": "nvmlDeviceGetMemoryInfo*", "gpu": 0, "hang": True}
    file = machine(devices=[H100, H100], faults=[fault], call_log="calls")
    look(timeout=1.0)
    before = len([1 for name, gpu in file.calls() if gpu == "0"])
    start = time.monotonic()
    for _ in range(5):
        assert [device.state for device in look(timeout=30).devices] == ["unresponsive", "ok"]
    assert time.monotonic() - start < 20
    assert len([1 for name, gpu in file.calls() if gpu == "0"]) == before
    file.write(devices=[H100, H100])
    assert eventually(lambda: [device.state for device in look().devices] == ["ok", "ok"])


def test_slow_gpus_are_asked_side_by_side(machine: Machine) -> None:
    machine(devices=[{"profile": "h100", "count": 8}], faults=[{"call": "nvmlDeviceGet*", "latency": 0.05}])
    found = look(timeout=2.5, detail="choice")  # one after the other they would need more than 3 s
    assert [device.state for device in found.devices] == ["ok"] * 8


def test_many_threads_may_look_at_once(machine: Machine) -> None:
    machine(devices=[{"profile": "h100", "count": 4}])
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(look(timeout=30).devices))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [4] * 8


def test_a_forked_child_starts_nvml_for_itself(machine: Machine) -> None:
    file = machine(call_log="calls")
    look()
    child = os.fork()
    if child == 0:
        os._exit(0 if len(look().devices) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert Counter(name for name, _ in file.calls())["nvmlInitWithFlags"] == 2


def test_a_child_forked_while_a_driver_hangs_is_not_stuck(machine: Machine) -> None:
    machine(faults=[{"call": "nvmlInit*", "hang": True}])
    look(timeout=0.1)
    child = os.fork()
    if child == 0:
        os._exit(0 if look(timeout=0.1).driver.state == "unresponsive" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("call", ["nvmlInit*", "nvmlDeviceGetName"])
def test_a_program_ends_while_a_driver_hangs(machine: Machine, call: str) -> None:
    machine(faults=[{"call": call, "hang": True}])
    program = (
        "from gpulab.hardware import nvml; found = nvml.snapshot(timeout=2); "
        "print(found.driver.state, *(device.state for device in found.devices), nvml.is_hanging())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == (["unresponsive"] if call == "nvmlInit*" else ["ok", "unresponsive"]) + [
        "True"
    ]
    assert done.stderr == ""


def test_nothing_hangs_once_every_call_has_returned(machine: Machine) -> None:
    file = machine(faults=[{"call": "nvmlInit*", "hang": True}])
    look(timeout=0.2)
    assert nvml.is_hanging()
    file.write()
    assert eventually(lambda: not nvml.is_hanging())


def open_times(file: MachineFile) -> int:
    """How often NVML was started and not ended: a GPU can be reset only at 0."""
    counted = Counter(name for name, _ in file.calls())
    return counted["nvmlInitWithFlags"] - counted["nvmlShutdown"]


def test_nvml_is_let_go_of_as_soon_as_a_call_that_hung_has_returned(machine: Machine) -> None:
    file = machine(devices=[H100, H100], call_log="calls")
    look()
    file.write(
        devices=[H100, H100],
        faults=[{"call": "nvmlDeviceGetMemoryInfo*", "gpu": 1, "hang": True}],
        call_log="calls",
    )
    look(timeout=0.2)
    nvml.shutdown()
    assert open_times(file) == 1  # ending it now would crash this process
    file.write(devices=[H100, H100], call_log="calls")
    assert eventually(lambda: not nvml.is_hanging())
    nvml.shutdown()
    assert open_times(file) == 0
    assert [device.state for device in look().devices] == ["ok", "ok"]
    nvml.shutdown()
    assert open_times(file) == 0


def test_an_end_that_hangs_is_tried_once_and_passes(machine: Machine) -> None:
    file = machine(call_log="calls")
    look()
    file.write(faults=[{"call": "nvmlShutdown", "hang": True}], call_log="calls")
    for _ in range(3):
        nvml.shutdown()
        assert look(timeout=0.1).driver.state == "unresponsive"
    assert [name for name, _ in file.calls()].count("nvmlShutdown") == 1
    file.write(call_log="calls")
    assert eventually(lambda: look().driver.ok)
    nvml.shutdown()
    assert open_times(file) == 0


def test_a_driver_that_starts_but_says_no_more_is_not_kept_open_again_and_again(machine: Machine) -> None:
    file = machine(faults=[{"call": "nvmlDeviceGetCount*", "code": 4}], call_log="calls")
    for _ in range(3):
        assert look().driver.state == "no_permission"
        nvml.shutdown()
    assert open_times(file) == 0


def test_looking_loads_no_heavy_package() -> None:
    heavy = "{'psutil', 'numpy', 'asyncio', 'dataclasses', 'sqlite3', 'json'}"
    look = "import sys; from gpulab.hardware import nvml; nvml.snapshot()"
    program = f"{look}; print(sorted({heavy} & set(sys.modules)))"
    env = {**os.environ, "GPULAB_SIMULATE": "8xh100"}
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip() == "[]"
