"""The fast look: few calls, the slow values carried over, and a whole look as soon as anything is amiss."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

from gpulab.hardware import nvml
from gpulab.hardware.devices import Device, Snapshot

from .conftest import Machine, MachineFile, eventually

GIB = 2**30
STEADY = {"profile": "h100", "utilization": 60, "power": 400, "temperature": 55, "memory_used": "10GiB"}


def fast(**options: Any) -> Snapshot:
    return nvml.snapshot(detail="fast", **options)


def of(uuid_or_index: int, snapshot: Snapshot) -> Device:
    return snapshot.devices[uuid_or_index]


def per_gpu(file: MachineFile, since: int, gpus: int) -> float:
    return len(file.calls()[since:]) / gpus


def test_a_fast_look_makes_at_most_seven_calls_for_each_gpu_with_four_processes(machine: Machine) -> None:
    running = [
        {"gpu": gpu, "pid": 1000 * (gpu + 1) + n, "memory": "1GiB", "gpu_percent": 10}
        for gpu in range(8)
        for n in range(4)
    ]
    file = machine(devices=[{**STEADY, "count": 8}], processes=running, call_log="calls")
    fast()
    before = len(file.calls())
    found = fast()
    assert per_gpu(file, before, 8) <= 7
    assert all(len(device.processes or ()) == 4 for device in found.devices)
    assert {device.gpu_percent for device in found.devices} == {60}
    assert not {name for name, _ in file.calls()[before:]} & {"nvmlInitWithFlags", "nvmlDeviceGetName"}


def test_what_moves_is_new_and_the_rest_is_from_the_last_whole_look(machine: Machine) -> None:
    file = machine(devices=[STEADY], processes=[{"gpu": 0, "pid": 5, "memory": "1GiB", "gpu_percent": 40}])
    whole = of(0, fast())
    assert (whole.temperature_celsius, whole.detailed_at) == (55, pytest.approx(whole.sampled_at, abs=5))
    file.write(
        devices=[{**STEADY, "utilization": 90, "power": 650, "temperature": 80}],
        processes=[{"gpu": 0, "pid": 5, "memory": "3GiB"}, {"gpu": 0, "pid": 6, "memory": "2GiB"}],
    )
    now = of(0, fast())
    assert (now.gpu_percent, now.power_watts) == (90, 650)
    assert (now.temperature_celsius, now.detailed_at) == (55, whole.detailed_at)  # old, and dated
    held = {p.pid: (p.memory_bytes, p.gpu_percent) for p in now.processes or ()}
    assert held == {5: (3 * GIB, 40), 6: (2 * GIB, None)}
    again = nvml.snapshot(detail="full").devices[0]
    assert again.temperature_celsius == 80
    assert of(0, fast()).temperature_celsius == 80


def test_a_process_has_its_account_and_one_that_has_ended_is_gone(machine: Machine) -> None:
    mine = {"gpu": 0, "pid": os.getpid(), "memory": "1GiB"}
    file = machine(devices=[STEADY], processes=[mine])
    for _ in range(2):
        (process,) = of(0, fast()).processes or ()
        assert (process.pid, process.uid) == (os.getpid(), os.getuid())
    file.write(devices=[STEADY])
    assert of(0, fast()).processes == ()


def test_links_clocks_and_what_brakes_are_told_when_asked(machine: Machine) -> None:
    machine(
        devices=[
            {
                **STEADY,
                "sm_clock": 1410,
                "memory_clock": 2619,
                "throttle": ["sw_power_cap", "sw_thermal_slowdown"],
                "pcie_rx": 12e9,
                "pcie_tx": 3e9,
                "nvlink_rx": "100GiB",
                "nvlink_tx": 5e9,
            },
            {**STEADY, "missing": ["pcie", "clocks", "throttle"]},
        ]
    )
    whole = of(0, nvml.snapshot(detail="full"))
    assert (whole.sm_clock_mhz, whole.memory_clock_mhz) == (1410, 2619)
    assert whole.throttle_reasons == ("sw_power_cap", "sw_thermal_slowdown")
    assert whole.pcie_rx_bytes_per_second is None  # nobody asked
    fast(links=True)
    first, second = fast(links=True).devices
    assert (first.pcie_rx_bytes_per_second, first.pcie_tx_bytes_per_second) == (12e9, 3e9)
    assert first.nvlink_rx_bytes_per_second == pytest.approx(100 * GIB, rel=0.2)
    assert first.nvlink_tx_bytes_per_second == pytest.approx(5e9, rel=0.2)
    assert (second.pcie_rx_bytes_per_second, second.nvlink_rx_bytes_per_second) == (None, None)
    assert (second.sm_clock_mhz, second.throttle_reasons) == (None, None)
    assert of(0, fast()).pcie_rx_bytes_per_second is None


def test_slices_are_looked_at_without_asking_who_they_are_again(machine: Machine) -> None:
    parts = [{"profile": "1g.10gb", "memory_used": "2GiB"}, {"profile": "2g.20gb"}]
    file = machine(devices=[{"profile": "h100", "mig": parts}], call_log="calls")
    names = [device.uuid for device in fast().devices]
    before = len(file.calls())
    found = fast().devices
    assert [device.uuid for device in found] == names
    assert found[1].memory.used_bytes == 2 * GIB
    assert found[0].gpu_percent is None
    assert "nvmlDeviceGetUUID" not in Counter(name for name, _ in file.calls()[before:])


@pytest.mark.parametrize("code", [1, 2, 3, 4, 6, 7, 9, 10, 13, 15, 16, 17, 18, 19, 21, 25, 27, 999, 4711])
def test_any_code_on_any_call_at_any_time_hides_no_other_gpu_and_makes_up_nothing(
    machine: Machine, code: int
) -> None:
    devices = [STEADY, STEADY]
    file = machine(devices=devices)
    fast()
    for call in ("*Memory*", "*Utilization*", "*Power*", "*Energy*", "*RunningProcesses*", "*Handle*", "*"):
        file.write(devices=devices, faults=[{"call": f"nvmlDevice{call}", "gpu": 0, "code": code}])
        for look in (fast(), fast(links=True), nvml.snapshot(detail="full")):
            sick, sound = look.devices
            assert (sound.gpu_percent, sound.power_watts, sound.state) == (60, 400, "ok")
            assert sick.gpu_percent in (60, None)
            assert sick.memory.used_bytes in (10 * GIB, None)
            assert sick.uuid
        file.write(devices=devices)
        assert eventually(lambda: of(0, fast()).gpu_percent == 60)
        assert of(0, fast()).temperature_celsius == 55


def test_a_gpu_that_hangs_in_a_fast_look_says_so_and_comes_back(machine: Machine) -> None:
    file = machine(devices=[STEADY, STEADY])
    fast()
    file.write(devices=[STEADY, STEADY], faults=[{"call": "*Utilization*", "gpu": 1, "hang": True}])
    sound, stuck = fast(timeout=0.3).devices
    assert (sound.state, sound.gpu_percent) == ("ok", 60)
    assert (stuck.state, stuck.gpu_percent, stuck.memory.used_bytes) == ("unresponsive", None, None)
    file.write(devices=[STEADY, STEADY])
    assert eventually(lambda: of(1, fast(timeout=0.3)).gpu_percent == 60)
    assert of(1, fast()).temperature_celsius == 55


def test_a_gpu_that_joins_or_leaves_is_seen(machine: Machine) -> None:
    file = machine(devices=[STEADY])
    fast()
    file.write(devices=[STEADY, STEADY])
    assert [device.gpu_percent for device in fast().devices] == [60, 60]
    file.write(devices=[STEADY])
    assert len(fast().devices) == 1


def test_an_energy_counter_that_runs_backwards_says_nothing_once(machine: Machine) -> None:
    file = machine(devices=[{**STEADY, "power": 400}])
    first = of(0, fast()).energy_joules
    assert first is not None
    file.write(
        devices=[{**STEADY, "power": 100}]
    )  # the simulated counter is power times the time that has passed
    assert of(0, fast()).energy_joules is None
    after = of(0, fast()).energy_joules
    assert after is not None
    assert after < first


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("utilization", 140, "gpu_percent"),
        ("power", 5e7, "power_watts"),
        ("sm_clock", 4e6, "sm_clock_mhz"),
        ("temperature", 900, "temperature_celsius"),
    ],
)
def test_what_cannot_be_is_not_shown(machine: Machine, key: str, value: float, field: str) -> None:
    machine(devices=[{**STEADY, key: value}])
    assert getattr(of(0, nvml.snapshot(detail="full")), field) is None
    assert getattr(of(0, fast(links=True)), field) is None
