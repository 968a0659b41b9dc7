"""Snapshots for programs that may not call NVML: the sampler's record, else a short child process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpulab import config
from gpulab.hardware import observe as module
from gpulab.hardware.devices import DriverState, Snapshot
from gpulab.hardware.observe import observe
from gpulab.hardware.record import publish, record_path

from .conftest import Machine, eventually


def put_record(seconds_old: float) -> None:
    settings = config.load()
    os.makedirs(os.path.dirname(record_path(settings)), exist_ok=True)
    publish(Snapshot(time.time() - seconds_old, DriverState(driver="of the record")), settings)


def test_a_fresh_record_of_the_sampler_is_taken(machine: Machine) -> None:
    machine()
    put_record(seconds_old=0.5)
    found = observe()
    assert (found.source, found.driver.driver) == ("sampler", "of the record")


def test_without_a_record_a_child_asks(machine: Machine) -> None:
    machine(devices=[{"profile": "h100", "count": 2, "utilization": 9}])
    found = observe()
    assert (found.source, found.simulated, len(found.devices)) == ("nvml", True, 2)
    assert found.devices[1].gpu_percent == 9


def test_an_old_record_is_not_taken(machine: Machine) -> None:
    machine()
    put_record(seconds_old=30)
    assert observe().source == "nvml"
    assert observe(max_age=60).source == "sampler"


def test_this_process_never_loads_the_library_itself(machine: Machine) -> None:
    machine()
    program = (
        "import sys; from gpulab.hardware.observe import observe; observe(); "
        "print(sorted({'pynvml', 'gpulab.hardware.binding', 'gpulab.hardware.nvml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_a_driver_the_childs_reason_is_told() -> None:
    assert observe().driver.state == "no_library"


def test_a_driver_that_hangs_ends_within_the_timeout(machine: Machine) -> None:
    machine(faults=[{"call": "nvmlInit*", "hang": True}])
    start = time.monotonic()
    found = observe(timeout=1.5)
    assert time.monotonic() - start < 5
    assert found.driver.state == "unresponsive"
    assert found.simulated
    assert "did not answer" in found.driver.message


def test_a_child_that_says_nothing_is_killed_and_leaves_no_process(machine: Machine, tmp_path: Path) -> None:
    machine()
    (tmp_path / "sitecustomize.py").write_text(
        f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        found = observe(timeout=1.0)
    assert found.driver.state == "unresponsive"
    pid = int((tmp_path / "pid").read_text())
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert observe().driver.ok, "and the next one is asked again"


def test_a_child_that_dies_is_an_error_with_a_remedy(machine: Machine, tmp_path: Path) -> None:
    machine()
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(3)\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        found = observe()
    assert found.driver.state == "error"
    assert "gpulab doctor" in found.driver.message


def test_files_in_the_working_directory_do_not_disturb_the_child(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine()
    for name in ("json.py", "typing.py", "gpulab.py", "ctypes.py"):
        (tmp_path / name).write_text("raise SystemExit('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONINSPECT", "1")
    assert observe().driver.ok


def test_the_machine_of_the_given_settings_is_asked(machine: Machine) -> None:
    machine()
    settings = config.load()._replace(simulate="3xt4")
    found = observe(settings=settings)
    assert [device.name for device in found.devices] == ["Tesla T4 (simulated)"] * 3


def test_a_wrong_setting_is_a_state_and_not_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULAB_POLICY", "fastest")
    found = observe()
    assert found.driver.state == "error"
    assert "policy is 'fastest'" in found.driver.message


def test_a_python_that_cannot_be_started_is_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    found = observe()
    assert found.driver.state == "error"
    assert "No process can be started" in found.driver.message


def test_threads_that_look_at_once_all_have_an_answer_in_time(machine: Machine) -> None:
    machine(faults=[{"call": "nvmlInit*", "hang": True}])
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(observe(timeout=1.2).driver.state)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == ["unresponsive"] * 4


def test_the_lease_descriptor_is_not_handed_to_the_child(machine: Machine, tmp_path: Path) -> None:
    machine()
    listing = tmp_path / "fds"
    (tmp_path / "sitecustomize.py").write_text(
        f"import os\nopen({str(listing)!r}, 'w').write(' '.join(os.listdir('/proc/self/fd')))\n"
    )
    held = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(held, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        observe()
    os.close(held)
    assert str(held) not in listing.read_text().split()


def test_a_child_that_could_not_be_killed_is_the_only_one(machine: Machine) -> None:
    """A stopped process stands for one in an uninterruptible call: both are there and do not answer."""
    machine()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as stuck:
        module._abandoned.append(stuck)
        assert observe(timeout=60).driver.state == "unresponsive"
        stuck.kill()
        stuck.wait()
        assert observe().driver.ok
