"""One door to NVML: what it says of every machine, and that it never raises, hangs or hides a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import gpulab
from gpulab.errors import RequestError
from gpulab.hardware import nvml
from gpulab.hardware.devices import Device, Snapshot

from .conftest import Machine, eventually

H100 = {"profile": "h100"}


def look(**options: Any) -> Snapshot:
    return nvml.snapshot(**options)


def test_a_snapshot_tells_what_each_gpu_is_and_does(machine: Machine) -> None:
    machine(
        driver="570.86.15",
        cuda="12.8",
        devices=[
            {
                "profile": "h100",
                "uuid": "GPU-11111111-2222-3333-4444-555555555555",
                "memory_used": "8GiB",
                "utilization": 73,
                "memory_utilization": 21,
                "temperature": 64,
                "power": 512.5,
                "compute_mode": "exclusive_process",
            }
        ],
    )
    found = look()
    assert found.driver == (*found.driver[:3], "570.86.15", "12.8")
    assert found.driver.ok
    assert found.simulated
    assert abs(found.time - time.time()) < 60
    (gpu,) = found.devices
    assert gpu.uuid == "GPU-11111111-2222-3333-4444-555555555555"
    assert gpu.name == "NVIDIA H100 80GB HBM3 (simulated)"
    assert gpu.memory.used_bytes == 8 * 2**30
    known = gpu.memory.used_bytes, gpu.memory.free_bytes, gpu.memory.reserved_bytes
    assert sum(value or 0 for value in known) == gpu.memory.total_bytes == 81559 * 2**20
    assert (gpu.gpu_percent, gpu.memory_percent, gpu.temperature_celsius) == (73, 21, 64)
    assert (gpu.power_watts, gpu.power_limit_watts) == (512.5, 700)
    assert gpu.compute_mode == "exclusive_process"
    assert gpu.processes == ()


def test_a_detail_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RequestError, match="full, choice, fast"):
        look(detail="all")


def test_the_public_name_is_this_snapshot(machine: Machine) -> None:
    machine()
    assert len(gpulab.snapshot(max_age=0).devices) == 1


def test_without_a_driver_the_reason_and_the_remedy_are_told() -> None:
    found = look()
    assert found.devices == ()
    assert not found.simulated
    assert (found.driver.state, found.driver.code) == ("no_library", 12)
    assert "install its driver" in found.driver.message


@pytest.mark.parametrize(
    ("code", "state", "remedy"),
    [
        (9, "no_driver", "modprobe"),
        (18, "driver_mismatch", "reboot or reload"),
        (4, "no_permission", "group"),
        (999, "error", "restart the container"),
        (10, "unresponsive", "reboot"),
        (12, "no_library", "install its driver"),
        (15, "error", "reboot"),
        (17, "error", "nvidia-smi"),
        (4711, "error", "nvidia-smi"),
    ],
)
def test_each_reason_why_nvml_is_off_has_a_name_and_a_remedy(
    machine: Machine, code: int, state: str, remedy: str
) -> None:
    machine(faults=[{"call": "nvmlInit*", "code": code}])
    found = look()
    assert (found.driver.state, found.driver.code, found.devices) == (state, code, ())
    assert remedy in found.driver.message
    assert found.driver.message.count(". ") == 0, "one sentence"


def test_a_driver_too_old_for_the_library_is_a_state(machine: Machine) -> None:
    machine(hidden_symbols=["nvmlInitWithFlags"])
    assert (look().driver.state, look().driver.code) == ("error", 13)


def test_a_wrong_scenario_is_a_state_and_says_what_is_wrong(machine: Machine) -> None:
    machine(devices=[{"profile": "h1000"}])
    found = look()
    assert found.driver.state == "error"
    assert "profile is 'h1000'" in found.driver.message


def test_nvml_is_tried_again_once_a_second_has_passed(machine: Machine) -> None:
    file = machine(faults=[{"call": "nvmlInit*", "code": 9}], call_log="calls")
    assert look().driver.state == "no_driver"
    assert look().driver.state == "no_driver"
    assert Counter(name for name, _ in file.calls())["nvmlInitWithFlags"] == 1
    file.write()
    assert eventually(lambda: look().driver.ok)


def test_nvml_is_started_once_and_kept(machine: Machine) -> None:
    file = machine(call_log="calls")
    for _ in range(3):
        look()
    names = Counter(name for name, _ in file.calls())
    assert (names["nvmlInitWithFlags"], names["nvmlDeviceGetCount_v2"]) == (1, 3)


def test_a_driver_that_forgets_us_is_started_again(machine: Machine) -> None:
    file = machine(call_log="calls")
    assert look().driver.ok
    file.write(faults=[{"call": "nvmlDeviceGetCount*", "code": 1, "times": 1}], call_log="calls")
    assert len(look().devices) == 1
    assert Counter(name for name, _ in file.calls())["nvmlInitWithFlags"] == 2


def test_a_driver_whose_every_gpu_fails_is_started_again_at_the_next_look(machine: Machine) -> None:
    file = machine(call_log="calls")
    look()
    file.write(faults=[{"call": "nvmlDeviceGetHandleByIndex*", "code": 999, "times": 1}], call_log="calls")
    assert [device.state for device in look().devices] == ["error"]
    assert [device.state for device in look().devices] == ["ok"]
    assert Counter(name for name, _ in file.calls())["nvmlInitWithFlags"] == 2


def test_after_a_shutdown_the_next_look_starts_nvml_again(machine: Machine) -> None:
    file = machine(call_log="calls")
    look()
    nvml.shutdown()
    assert look().driver.ok
    names = Counter(name for name, _ in file.calls())
    assert (names["nvmlInitWithFlags"], names["nvmlShutdown"]) == (2, 1)


def test_choosing_costs_at_most_nine_calls_for_each_gpu(machine: Machine) -> None:
    processes = [{"gpu": gpu, "pid": 1000 + gpu, "memory": "1GiB"} for gpu in range(8)]
    file = machine(devices=[{"profile": "h100", "count": 8}], processes=processes, call_log="calls")
    found = look(detail="choice")
    assert all(len(device.processes or ()) == 1 for device in found.devices)
    per_gpu = Counter(gpu for _, gpu in file.calls() if gpu != "-")
    assert len(per_gpu) == 8
    assert max(per_gpu.values()) <= 9


def test_a_lost_gpu_says_so_and_the_others_are_told_whole(machine: Machine) -> None:
    file = machine(devices=[{"profile": "h100", "count": 3}])
    uuids = [device.uuid for device in look().devices]
    file.write(devices=[{"profile": "h100", "count": 3}], faults=[{"call": "*Handle*", "gpu": 1, "code": 15}])
    found = look().devices
    assert [device.state for device in found] == ["ok", "lost", "ok"]
    assert [device.uuid for device in found] == uuids, "a lost GPU keeps the name it had"
    assert "fallen off the bus" in found[1].message
    assert (found[1].gpu_percent, found[1].memory.used_bytes, found[1].processes) == (None, None, None)


def test_a_gpu_lost_in_the_middle_of_a_look_is_lost(machine: Machine) -> None:
    machine(faults=[{"call": "nvmlDeviceGetUtilizationRates", "code": 15}])
    assert look().devices[0].state == "lost"


@pytest.mark.parametrize(("code", "words"), [(999, "unknown error"), (16, "must be reset"), (17, "error 17")])
def test_a_gpu_that_cannot_be_named_has_a_state_with_the_code(
    machine: Machine, code: int, words: str
) -> None:
    machine(devices=[H100, H100], faults=[{"call": "nvmlDeviceGetHandle*", "gpu": 0, "code": code}])
    broken, sound = look().devices
    assert (broken.index, broken.state, broken.uuid) == (0, "error", None)
    assert words in broken.message
    assert sound.state == "ok"


@pytest.mark.parametrize("code", [3, 4, 6, 21, 25, 999])
def test_what_a_driver_will_not_say_is_unknown_and_not_zero(machine: Machine, code: int) -> None:
    silent = (
        "*Utilization*", "*Temperature*", "*Power*", "*Energy*", "*Memory*", "*Mode", "*RunningProcesses*",
        "*Clock*",
    )  # fmt: skip
    machine(
        devices=[{"profile": "h100", "missing": ["fan"]}], faults=[{"call": c, "code": code} for c in silent]
    )
    (gpu,) = look().devices
    assert gpu.state == "ok"
    assert gpu == Device(
        gpu.index, gpu.uuid, gpu.name, sampled_at=gpu.sampled_at, detailed_at=gpu.detailed_at
    )


def test_a_gpu_that_shares_the_hosts_memory_shows_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "1xgb10")
    (gpu,) = look().devices
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    assert gpu.memory.shared_with_host
    assert gpu.memory.total_bytes == int(lines["MemTotal"].split()[0]) * 1024
    assert 0 < (gpu.memory.used_bytes or 0) < (gpu.memory.total_bytes or 0)
    assert gpu.power_limit_watts is None


def test_an_old_driver_without_the_second_memory_call_is_read_by_the_first(machine: Machine) -> None:
    machine(
        devices=[{"profile": "h100", "memory_used": "1GiB"}], hidden_symbols=["nvmlDeviceGetMemoryInfo_v2"]
    )
    memory = look().devices[0].memory
    assert memory.reserved_bytes is None
    assert memory.used_bytes == 2**30 + 551 * 2**20, "the first call counts the reserve as used"


def test_a_temperature_that_only_the_new_call_gives_is_found(machine: Machine) -> None:
    fault = {"call": "nvmlDeviceGetTemperature", "code": 3}
    machine(devices=[{"profile": "h100", "temperature": 51}], faults=[fault])
    assert look().devices[0].temperature_celsius == 51


def test_impossible_values_are_unknown(machine: Machine) -> None:
    machine(
        devices=[{"profile": "h100", "utilization": 250, "memory_used": "900GiB", "temperature": 4000}],
        processes=[
            {"gpu": 0, "pid": 0, "memory": "1GiB"},
            {"gpu": 0, "pid": 4294967295, "memory": "1GiB"},
            {"gpu": 0, "pid": 77, "memory": None},
            {"gpu": 0, "pid": 78, "memory": "4000GiB", "gpu_percent": 300},
        ],
    )
    (gpu,) = look().devices
    assert (gpu.gpu_percent, gpu.memory.used_bytes, gpu.temperature_celsius) == (None, None, None)
    assert [(p.pid, p.memory_bytes, p.gpu_percent) for p in gpu.processes or ()] == [
        (77, None, None),
        (78, None, None),
    ]
    assert gpu.unattributed_bytes is None


def test_a_list_of_impossible_processes_only_is_unknown_and_not_empty(machine: Machine) -> None:
    machine(processes=[{"gpu": 0, "pid": 4294967295, "memory": "1GiB"}])
    assert look().devices[0].processes is None


def test_drivers_with_wide_process_entries_are_read_right(machine: Machine) -> None:
    processes = [{"gpu": 0, "pid": pid, "memory": "1GiB"} for pid in (1184, 1185, 1186)]
    machine(driver="535.54.03", processes=processes)
    assert [(p.pid, p.memory_bytes) for p in look().devices[0].processes or ()] == [
        (1184, 2**30),
        (1185, 2**30),
        (1186, 2**30),
    ]


def test_an_old_driver_without_the_third_process_call_is_read_by_the_second(machine: Machine) -> None:
    machine(hidden_symbols=["*RunningProcesses_v3"], processes=[{"gpu": 0, "pid": 55, "memory": "1GiB"}])
    assert [p.pid for p in look().devices[0].processes or ()] == [55]


def test_a_process_has_its_user_its_short_command_and_its_share(machine: Machine) -> None:
    import pwd

    machine(processes=[{"gpu": 0, "pid": os.getpid(), "memory": "3GiB", "gpu_percent": 42}])
    (process,) = look().devices[0].processes or ()
    assert process.pid == os.getpid()
    assert process.user == pwd.getpwuid(os.getuid()).pw_name
    assert process.command == Path("/proc/self/comm").read_text().strip()
    assert (process.memory_bytes, process.gpu_percent, process.type) == (3 * 2**30, 42, "compute")


def test_a_command_with_control_characters_cannot_write_to_a_terminal(machine: Machine) -> None:
    rename = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a\\x1b[31mb\\n')"
    program = f"{rename}; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        machine(processes=[{"gpu": 0, "pid": child.pid, "memory": "1GiB"}])
        assert [p.command for p in look().devices[0].processes or ()] == ["a[31mb"]
        child.kill()


def test_a_process_that_is_not_ours_to_see_has_no_user(machine: Machine) -> None:
    machine(processes=[{"gpu": 0, "pid": 4194303, "memory": "1GiB"}])
    (process,) = look().devices[0].processes or ()
    assert (process.user, process.command) == (None, None)


def test_graphics_processes_are_told_apart_and_only_in_full(machine: Machine) -> None:
    machine(processes=[{"gpu": 0, "pid": 5, "memory": "1GiB", "type": "graphics"}])
    assert [p.type for p in look().devices[0].processes or ()] == ["graphics"]
    assert look(detail="choice").devices[0].processes == ()


def test_a_sliced_gpu_is_followed_by_its_slices(machine: Machine) -> None:
    machine(
        devices=[
            {
                "profile": "a100",
                "mig": [{"profile": "3g.40gb", "memory_used": "2GiB"}, {"profile": "1g.10gb"}],
            },
            {"profile": "a100"},
        ],
    )
    parent, first, second, other = look().devices
    assert [device.kind for device in (parent, first, second, other)] == ["gpu", "mig", "mig", "gpu"]
    assert [device.index for device in (parent, first, second, other)] == [0, 0, 0, 1]
    assert {first.parent_uuid, second.parent_uuid} == {parent.uuid}
    assert (first.memory.total_bytes, first.memory.used_bytes) == (40 * 2**30, 2 * 2**30)
    assert (parent.gpu_percent, first.gpu_percent, other.gpu_percent) == (None, None, 0)
    assert (first.uuid or "").startswith("MIG-")
    assert (first.name or "").endswith("MIG 3g.40gb (simulated)")


def test_a_process_in_a_slice_is_the_slices_and_not_its_neighbours(machine: Machine) -> None:
    slices = [{"profile": "1g.10gb", "uuid": "MIG-one"}, {"profile": "1g.10gb", "uuid": "MIG-two"}]
    process = {"gpu": "MIG-two", "pid": 99, "memory": "3GiB"}
    machine(devices=[{"profile": "h100", "mig": slices}], processes=[process])
    _, one, two = look().devices
    assert (one.processes, one.memory.used_bytes) == ((), 0)
    assert [p.pid for p in two.processes or ()] == [99]
    assert two.memory.used_bytes == 3 * 2**30


def test_in_a_container_the_parents_memory_is_unknown_and_the_slices_is_told(machine: Machine) -> None:
    device = {"profile": "h100", "mig": [{"profile": "1g.10gb"}]}
    machine(devices=[device], faults=[{"call": "nvmlDeviceGetMemoryInfo*", "code": 4, "times": 1}])
    parent, part = look().devices
    assert (parent.memory.total_bytes, parent.memory.shared_with_host) == (None, False)
    assert part.memory.total_bytes == 10 * 2**30


def test_a_choice_asks_for_graphics_only_where_nobody_who_computes_uses_the_memory(
    machine: Machine,
) -> None:
    desktop = {"gpu": 0, "pid": 5, "memory": "20GiB", "type": "graphics"}
    file = machine(devices=[{"profile": "h100"}] * 2, processes=[desktop], call_log="calls")
    screen, bare = look(detail="choice").devices
    assert [process.type for process in screen.processes or ()] == ["graphics"]
    assert (screen.unlisted_bytes, bare.processes) == (0, ())
    assert {gpu for name, gpu in file.calls() if "Graphics" in name} == {"0"}
    assert sum(gpu == "1" for _, gpu in file.calls()) <= 9


def test_a_gpu_that_may_not_be_opened_says_who_may_keep_it(machine: Machine) -> None:
    fault = {"call": "nvmlDeviceGetHandleByIndex*", "gpu": 0, "code": 4}
    machine(devices=[{"profile": "h100"}] * 2, faults=[fault])
    kept, ours = look().devices
    assert (kept.state, ours.state) == ("error", "ok")
    assert "a scheduler keeps it for others" in kept.message
