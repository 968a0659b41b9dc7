"""The fast look: few calls, the slow values carried over, and a whole look as soon as anything is amiss."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path
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


CODES = (*range(1, 31), 999, 4711)
RICH = {
    **STEADY,
    "memory_reserved": 0,  # which the older call counts as used; that has a test of its own
    "sm_clock": 1410,
    "memory_clock": 2619,
    "throttle": ["sw_power_cap"],
    "pcie_rx": 12e9,
    "pcie_tx": 3e9,
    "nvlink_rx": 100e9,
    "nvlink_tx": 5e9,
    "count": len(CODES) + 1,
}
NOBODYS = 4_190_000
"""From here on pids that Linux would give only after four million others."""
HELD = [
    {"gpu": gpu, "pid": NOBODYS + 2 * gpu + n, "memory": "1GiB", "gpu_percent": 30, "type": kind}
    for gpu in range(len(CODES) + 1)
    for n, kind in enumerate(("compute", "graphics"))
]
LOOKS: tuple[dict[str, Any], ...] = (
    {"detail": "fast", "links": True},
    {"detail": "full", "links": True},
)


def names_of_calls(file: MachineFile, **scenario: Any) -> list[tuple[str, bool]]:
    """The names of all calls that looking makes, and whether each is about one GPU."""
    file.write(**scenario, call_log="calls")
    nvml.shutdown()
    for look in LOOKS:
        nvml.snapshot(**look)
    file.write(**scenario)
    return sorted({(name, gpu != "-") for name, gpu in file.calls()} - {("nvmlShutdown", False)})


def figures(device: Device) -> dict[str, Any]:
    """All that it says of its load, but for what moves by itself."""
    told = device._asdict()
    for name in ("index", "uuid", "name", "kind", "parent_uuid", "state", "message", "sampled_at"):
        told.pop(name)
    for name in ("detailed_at", "energy_joules", "nvlink_rx_bytes_per_second", "nvlink_tx_bytes_per_second"):
        told.pop(name)
    processes, memory = told.pop("processes") or (), told.pop("memory")
    held = {(process.pid, name): value for process in processes for name, value in process._asdict().items()}
    return {**told, **memory._asdict(), **held}


def made_up(sick: Device, sound: dict[str, Any]) -> dict[str, Any]:
    """What it says that is neither so nor unknown."""
    return {key: value for key, value in figures(sick).items() if value not in (None, sound.get(key))}


def test_any_code_on_any_call_about_a_gpu_hides_no_other_gpu_and_makes_up_nothing(machine: Machine) -> None:
    file = machine(devices=[RICH], processes=HELD)
    calls = [name for name, about_one in names_of_calls(file, devices=[RICH], processes=HELD) if about_one]
    assert len(calls) >= 18
    whole = nvml.snapshot(detail="full", links=True).devices
    for call in calls:  # each code on a GPU of its own, after all went well; the first GPU stays sound
        faults = [{"call": call, "gpu": gpu, "code": code} for gpu, code in enumerate(CODES, 1)]
        file.write(devices=[RICH], processes=HELD, faults=faults)
        for look in LOOKS:
            sound, *sick = nvml.snapshot(**look).devices
            assert (figures(sound), sound.state) == (figures(whole[0]), "ok")
            for code, device in zip(CODES, sick, strict=True):
                assert made_up(device, figures(whole[device.index])) == {}, (call, code, look)
                assert device.uuid == whole[device.index].uuid
        file.write(devices=[RICH], processes=HELD)
        assert [device.gpu_percent for device in fast().devices] == [60] * len(whole)
    healed = nvml.snapshot(detail="full", links=True).devices
    assert [figures(device) for device in healed] == [figures(device) for device in whole]


def test_any_code_on_any_call_about_the_driver_is_a_state_and_passes(machine: Machine) -> None:
    file = machine(devices=[STEADY])
    calls = [name for name, about_one in names_of_calls(file, devices=[STEADY]) if not about_one]
    assert len(calls) >= 4
    for call in calls:
        for code in CODES:
            assert of(0, fast()).gpu_percent == 60
            file.write(devices=[STEADY], faults=[{"call": call, "code": code}])
            for _ in range(2):
                found = fast()
                assert found.driver.ok == bool(found.devices), (call, code)
                assert found.driver.ok or found.driver.message, (call, code)
            nvml.shutdown()  # else it is tried again only after a second
            file.write(devices=[STEADY])
    assert of(0, fast()).gpu_percent == 60


@pytest.mark.parametrize(
    ("fault", "state"),
    [
        ({"call": "*", "code": 15}, "lost"),
        ({"call": "*", "code": 16}, "error"),
        ({"call": "nvmlDeviceGetMemoryInfo*", "hang": True}, "unresponsive"),
    ],
)
def test_a_gpu_that_stays_amiss_makes_no_other_dearer(
    machine: Machine, fault: dict[str, Any], state: str
) -> None:
    devices = [{**STEADY, "count": 3}]
    file = machine(devices=devices)
    fast()
    file.write(devices=devices, faults=[{**fault, "gpu": 1}], call_log="calls")
    fast(timeout=0.3)
    before = len(file.calls())
    assert [device.state for device in fast().devices] == ["ok", state, "ok"]
    for gpu in "02":
        assert len([1 for _, about in file.calls()[before:] if about == gpu]) <= 7
    file.write(devices=devices)
    assert eventually(lambda: [device.gpu_percent for device in fast().devices] == [60] * 3)


def test_one_call_that_never_works_costs_no_whole_look_each_time(machine: Machine) -> None:
    faults = [{"call": "nvmlDeviceGetTotalEnergyConsumption", "code": 999}]
    file = machine(devices=[STEADY], faults=faults, call_log="calls")
    fast()
    before = len(file.calls())
    assert of(0, fast()).energy_joules is None
    assert len(file.calls()[before:]) <= 7 + 1  # the count of all GPUs


def test_a_gpu_that_a_container_lost_says_so_at_the_second_look(machine: Machine) -> None:
    file = machine(devices=[STEADY])
    fast()
    file.write(devices=[STEADY], faults=[{"call": "nvmlDevice*", "code": 999}])
    fast()
    found = fast()
    assert [device.state for device in found.devices] in ([], ["error"])
    file.write(devices=[STEADY])
    assert eventually(lambda: [device.gpu_percent for device in fast().devices] == [60])


def test_slices_that_are_made_anew_are_seen_at_the_second_look(machine: Machine) -> None:
    file = machine(devices=[{"profile": "h100", "mig": [{"memory_used": "1GiB"}, {"memory_used": "2GiB"}]}])
    assert len(fast().devices) == 3
    file.write(devices=[{"profile": "h100", "mig": [{"uuid": "MIG-new", "memory_used": "1GiB"}]}])
    for device in fast().devices[2:]:
        assert device.memory.used_bytes is None
    assert [device.uuid for device in fast().devices][1:] == ["MIG-new"]
    file.write(devices=[STEADY])
    fast()
    assert [device.kind for device in fast().devices] == ["gpu"]


def a_process_with_id(pid: int, command: list[str]) -> subprocess.Popen[bytes] | None:
    """A new process with this id, if this account may choose one."""
    for _ in range(50):
        try:
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        except OSError:
            return None
        child = subprocess.Popen(command)
        if child.pid == pid:
            return child
        child.kill()
        child.wait()
    return None


def test_a_new_process_with_an_old_ones_id_is_not_taken_for_it(machine: Machine) -> None:
    first = subprocess.Popen(["sleep", "100"])
    assert eventually(lambda: Path(f"/proc/{first.pid}/comm").read_text() == "sleep\n")
    machine(devices=[STEADY], processes=[{"gpu": 0, "pid": first.pid, "memory": "1GiB", "gpu_percent": 40}])
    told = [(p.command, p.gpu_percent) for _ in range(2) for p in of(0, fast()).processes or ()]
    assert told == [("sleep", 40), ("sleep", 40)]
    first.kill()
    first.wait()
    second = a_process_with_id(first.pid, ["tail", "-f", "/dev/null"])
    if second is None:
        pytest.skip("this account cannot choose the id of a process")
    assert eventually(lambda: Path(f"/proc/{second.pid}/comm").read_text() == "tail\n")
    (process,) = of(0, fast()).processes or ()
    assert (process.pid, process.command, process.gpu_percent) == (first.pid, "tail", None)
    second.kill()
    second.wait()


def test_what_is_watched_closely_is_as_new_as_its_date(machine: Machine) -> None:
    file = machine(devices=[STEADY])
    before = of(0, fast())
    file.write(devices=[{**STEADY, "temperature": 88}])
    now = of(0, fast(links=True))
    assert now.temperature_celsius == 88
    assert (now.detailed_at or 0) > (before.detailed_at or 0)


def test_a_whole_look_tells_the_links_too_if_asked(machine: Machine) -> None:
    machine(devices=[RICH])
    assert of(0, nvml.snapshot(detail="full", links=True)).pcie_rx_bytes_per_second == 12e9
    assert of(0, nvml.snapshot(detail="full")).pcie_rx_bytes_per_second is None


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
