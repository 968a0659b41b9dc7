"""The simulated machine behind pynvml: real clients run on it, and agree with our own snapshot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from gpulab.errors import ScenarioError
from gpulab.hardware import nvml, simulated

from .conftest import Machine, eventually


@pytest.fixture
def behind_pynvml(machine: Machine) -> Iterator[Machine]:
    """Machines that stand behind pynvml in this process."""

    def make(**scenario: object) -> object:
        file = machine(**scenario)
        simulated.install(str(file.path))
        return file

    yield make  # type: ignore[misc]
    simulated.uninstall()


def run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpulab.hardware.simulated", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=60)


def test_nvitop_runs_on_it(machine: Machine) -> None:
    slices = [{"profile": "1g.10gb", "memory_used": "3GiB"}]
    file = machine(
        devices=[
            {"profile": "t4", "memory_used": "1GiB", "utilization": 37},
            {"profile": "h100", "mig": slices},
        ],
        processes=[{"gpu": 0, "pid": os.getpid(), "memory": "2GiB", "gpu_percent": 12, "bound": True}],
    )
    shown = run(str(file.path), "--", "nvitop", "-1").stdout
    assert "(simulated)" in shown
    assert "3072MiB / 15360MiB" in shown, "the process's memory counts as used"
    assert "37%" in shown
    assert "1g.10gb" in shown or "GI/CI: 1/0" in shown
    assert str(os.getpid()) in shown


def test_gpustat_runs_on_it_and_agrees_with_our_snapshot(machine: Machine) -> None:
    file = machine(
        devices=[
            {"profile": "h100", "count": 3, "memory_used": "5GiB", "utilization": 41, "temperature": 66}
        ],
        processes=[{"gpu": 1, "pid": os.getpid(), "memory": "7GiB"}],
    )
    theirs = json.loads(run(str(file.path), "--", "gpustat", "--json").stdout)["gpus"]
    ours = nvml.snapshot().devices
    assert [gpu["uuid"] for gpu in theirs] == [device.uuid for device in ours]
    assert [gpu["memory.used"] * 2**20 for gpu in theirs] == [device.memory.used_bytes for device in ours]
    assert [gpu["memory.total"] * 2**20 for gpu in theirs] == [device.memory.total_bytes for device in ours]
    assert [gpu["utilization.gpu"] for gpu in theirs] == [device.gpu_percent for device in ours] == [41] * 3
    assert [gpu["temperature.gpu"] for gpu in theirs] == [device.temperature_celsius for device in ours]
    assert [p["pid"] for gpu in theirs for p in gpu["processes"]] == [os.getpid()]


def test_nvitops_own_layer_reads_wide_process_entries_too(machine: Machine) -> None:
    file = machine(driver="535.54.03", processes=[{"gpu": 0, "pid": os.getpid(), "memory": "2GiB"}])
    program = "from nvitop import Device; print(*Device(0).processes())"
    assert run(str(file.path), "--", "python", "-c", program).stdout.split() == [str(os.getpid())]


def test_pynvml_sees_what_the_scenario_says(behind_pynvml: Machine) -> None:
    behind_pynvml(
        devices=[{"profile": "a100", "mig": [{"profile": "2g.20gb"}]}, {"profile": "t4", "power": 33}]
    )
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 2
    a100, t4 = (pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))
    assert pynvml.nvmlDeviceGetMigMode(a100) == [1, 1]
    part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(a100, 0)
    assert pynvml.nvmlDeviceGetName(part).endswith("MIG 2g.20gb (simulated)")
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
    assert pynvml.nvmlDeviceGetUUID(parent) == pynvml.nvmlDeviceGetUUID(a100)
    assert pynvml.nvmlDeviceGetPowerUsage(t4) == 33_000
    assert pynvml.nvmlDeviceGetCudaComputeCapability(t4) == (7, 5)
    by_uuid = pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(t4))
    assert pynvml.nvmlDeviceGetIndex(by_uuid) == 1
    bus = pynvml.nvmlDeviceGetPciInfo(t4).busId
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(bus)) == 1
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(a100, 1)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(2)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetNvLinkVersion(t4, 0)


def test_the_library_answers_only_between_start_and_end(behind_pynvml: Machine) -> None:
    behind_pynvml()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 1, "it counts its users"
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def test_a_forked_child_must_start_the_library_anew(behind_pynvml: Machine) -> None:
    behind_pynvml()
    pynvml.nvmlInit()
    child = os.fork()
    if child == 0:
        try:
            pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError_Uninitialized:
            pynvml.nvmlInit()
            os._exit(0 if pynvml.nvmlDeviceGetCount() == 1 else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_faults_hit_the_calls_they_name_as_often_as_they_say(behind_pynvml: Machine) -> None:
    fault = {"call": "nvmlDeviceGetPower*", "gpu": 1, "code": 15, "after": 1, "times": 2}
    behind_pynvml(devices=[{"count": 2}], faults=[fault])
    pynvml.nvmlInit()
    first, second = (pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(2))

    def works(handle: object) -> bool:
        try:
            return bool(pynvml.nvmlDeviceGetPowerUsage(handle))
        except pynvml.NVMLError_GpuIsLost:
            return False

    assert [works(second) for _ in range(5)] == [True, False, False, True, True]
    assert all(works(first) for _ in range(5))


def test_faults_may_come_and_go_with_the_clock(behind_pynvml: Machine) -> None:
    behind_pynvml(faults=[{"call": "nvmlDeviceGetName", "code": 3, "until": 1}, {"call": "x", "from": 1}])
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetName(handle), "the fault ended in 1970"


def test_a_gpu_that_leaves_the_machine_is_lost(behind_pynvml: Machine) -> None:
    file = behind_pynvml(devices=[{"count": 2}])
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    file.write(devices=[{"count": 1}])
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetName(handle)


def test_a_symbol_that_is_hidden_is_not_there(behind_pynvml: Machine) -> None:
    behind_pynvml(hidden_symbols=["nvmlDeviceGetMemoryInfo_v2"])
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == 81559 * 2**20


def test_a_wrong_scenario_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError):
        simulated.install(str(tmp_path / "nowhere.json"))
    assert pynvml.nvmlLib is None


def test_a_bound_process_holds_memory_while_it_lives_and_not_after_sigkill(machine: Machine) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    machine(processes=[{"gpu": 0, "pid": child.pid, "memory": "4GiB", "bound": True}])
    (gpu,) = nvml.snapshot().devices
    assert [p.pid for p in gpu.processes or ()] == [child.pid]
    assert gpu.memory.used_bytes == 4 * 2**30
    child.send_signal(signal.SIGKILL)  # and nobody collects it yet
    assert eventually(lambda: nvml.snapshot().devices[0].processes == ())
    assert nvml.snapshot().devices[0].memory.used_bytes == 0
    child.wait()


def test_an_edit_is_seen_by_a_process_that_runs_already(machine: Machine) -> None:
    file = machine(devices=[{"utilization": 11}])
    program = (
        "import sys, gpulab\nfor _ in sys.stdin: print(gpulab.snapshot().devices[0].gpu_percent, flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None

        def told() -> str:
            other.stdin.write("look\n")  # type: ignore[union-attr]
            other.stdin.flush()  # type: ignore[union-attr]
            return other.stdout.readline().strip()  # type: ignore[union-attr]

        assert told() == "11.0"
        file.write(devices=[{"utilization": 88}])
        assert told() == "88.0"
        other.stdin.close()


def test_a_program_and_its_children_see_the_same_machine(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, gpulab; print(len(gpulab.snapshot().devices), *sys.argv[1:], flush=True);"
        "subprocess.run([sys.executable, '-c', 'import gpulab; print(len(gpulab.snapshot().devices))'])"
    )
    assert run("5xt4", "--", "python", "-c", program, "a", "b").stdout.split() == ["5", "a", "b", "5"]
    script = tmp_path / "script.py"
    script.write_text(
        "import pynvml, sys; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount(), *sys.argv[1:])"
    )
    assert run("5xt4", "--", str(script), "x").stdout.split() == ["5", "x"]
    assert run("5xt4", "--", "python", str(script), "-x").stdout.split() == ["5", "-x"]


def test_a_programs_own_exit_status_is_kept() -> None:
    assert run("1xt4", "--", "python", "-c", "raise SystemExit(7)", check=False).returncode == 7


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 64, "Write: python -m gpulab.hardware.simulated"),
        (("8xh100",), 64, "Write: python -m"),
        (("8xh100", "nvitop"), 64, "Write: python -m"),
        (("8xh100", "--"), 64, "Write: python -m"),
        (("8xfoo", "--", "nvitop"), 64, "no profile 'foo'"),
        (("nowhere.json", "--", "nvitop"), 64, "no such file"),
        (("1xt4", "--", "nvidia-smi"), 127, "no Python program 'nvidia-smi'"),
        (("1xt4", "--", "python", "nowhere.py"), 64, "name a file"),
    ],
)
def test_wrong_usage_is_told_in_one_sentence(
    arguments: tuple[str, ...],
    status: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "")  # what the command sets is undone with it
    assert simulated.main(arguments) == status
    shown = capsys.readouterr().err
    assert words in shown
    assert shown.count("\n") == 1
    simulated.uninstall()
