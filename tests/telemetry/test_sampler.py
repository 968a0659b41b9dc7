from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpulab import config
from gpulab.config import Settings
from gpulab.hardware import record
from gpulab.telemetry import sampler, store

Until = Callable[..., None]
Start = Callable[..., subprocess.Popen[str]]


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )


ENSURE = (
    "from gpulab import config; from gpulab.telemetry import sampler; print(sampler.ensure(config.load()))"
)


def test_a_reader_gets_a_sampler_whose_record_and_history_grow(settings: Settings, until: Until) -> None:
    assert sampler.ensure(settings)
    until(lambda: record.latest(settings), "the first record")
    first = record.latest(settings)
    assert first is not None
    assert first.simulated
    assert [device.state for device in first.devices] == ["ok", "ok"]
    until(lambda: len(store.recent(settings, 60).get(first.devices[0].uuid or "", ())) >= 3, "three samples")
    times = [sample.time for sample in store.recent(settings, 60)[first.devices[0].uuid or ""]]
    assert all(0.5 < after - before < 1.5 for before, after in itertools.pairwise(times))
    assert os.path.getsize(sampler.log_path(settings)) == 0


def test_of_many_processes_that_ask_at_once_one_starts_one_sampler(settings: Settings, until: Until) -> None:
    askers = [
        subprocess.Popen([sys.executable, "-c", ENSURE], stdout=subprocess.PIPE, text=True) for _ in range(6)
    ]
    assert [asker.communicate(timeout=30)[0].strip() for asker in askers] == ["True"] * 6
    until(lambda: record.latest(settings, max_age=3), "a record")
    assert len(samplers(settings)) == 1


def samplers(settings: Settings) -> list[int]:
    """Every process of this data directory that runs the sampler, whatever the lock says."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            command = Path("/proc", pid, "cmdline").read_bytes()
            environ = Path("/proc", pid, "environ").read_bytes()
        except OSError:
            continue
        if b"gpulab.telemetry.sampler" in command and settings.data_dir.encode() in environ:
            found.append(int(pid))
    return found


def test_the_one_that_comes_second_leaves_at_once(settings: Settings, start: Start, until: Until) -> None:
    first = start()
    until(lambda: sampler.running_pid(settings) == first.pid, "the first to be elected")
    second = start()
    assert second.wait(timeout=15) == 0
    assert sampler.running_pid(settings) == first.pid
    first.terminate()
    assert first.wait(timeout=15) == 0


def test_it_ends_when_nobody_reads_and_goes_on_while_somebody_does(
    settings: Settings, start: Start, until: Until
) -> None:
    process = start("--idle-seconds", "1")
    until(lambda: record.latest(settings), "a record")
    born = record.latest(settings)
    assert born is not None

    def keep_reading() -> bool:
        sampler.touch(settings)
        now = record.latest(settings)
        return now is not None and now.time - born.time > 2.5

    until(keep_reading, "samples beyond the idle time")
    assert process.poll() is None
    assert process.wait(timeout=15) == 0
    assert sampler.running_pid(settings) is None


def test_it_goes_on_while_this_account_holds_a_lease(settings: Settings, start: Start, until: Until) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", "import gpulab; lease = gpulab.acquire(); print('held', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    process = start("--idle-seconds", "1")
    until(lambda: record.latest(settings), "a record")
    born = record.latest(settings)
    assert born is not None
    until(
        lambda: (now := record.latest(settings)) is not None and now.time - born.time > 2,
        "samples for the lease",
    )
    assert process.poll() is None
    holder.communicate("\n", timeout=15)
    assert process.wait(timeout=15) == 0


BLOCKING = """
import ctypes, sys, time
from gpulab import config
from gpulab.telemetry import sampler
kept = sampler.watch(config.load())
begun = time.time()
ctypes.PyDLL(None).usleep(2_500_000)  # unlike CDLL, it keeps the interpreter lock
print(kept.active, begun, time.time(), flush=True)
sys.stdin.read()
"""


def test_who_watches_and_holds_the_interpreter_lock_gets_five_samples_a_second(
    settings: Settings, start: Start, until: Until
) -> None:
    process = start("--idle-seconds", "1")
    until(lambda: record.latest(settings), "a record")
    watcher = subprocess.Popen(
        [sys.executable, "-c", BLOCKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert watcher.stdout is not None
    active, begun, ended = watcher.stdout.readline().split()
    assert active == "True"
    (uuid, *_) = store.recent(settings, 60)
    found = [sample.time for sample in store.recent(settings, 60)[uuid] if float(begun) <= sample.time]
    due = (float(ended) - float(begun)) / 0.2
    assert sum(moment <= float(ended) for moment in found) >= 0.8 * due  # a machine for tests is a busy one
    assert process.poll() is None  # long after its idle time: the watch is a reader
    watcher.kill()
    watcher.communicate()
    assert process.wait(timeout=15) == 0


def test_it_ends_when_its_directory_is_gone(settings: Settings, start: Start, until: Until) -> None:
    process = start()
    until(lambda: record.latest(settings), "a record")
    shutil.rmtree(settings.data_dir)
    assert process.wait(timeout=15) == 0


def test_terminated_it_ends_cleanly(settings: Settings, start: Start, until: Until) -> None:
    process = start()
    until(lambda: record.latest(settings), "a record")
    process.terminate()
    assert process.wait(timeout=15) == 0
    assert process.communicate()[1] == ""


def test_it_does_not_hold_the_lease_of_whoever_started_it(settings: Settings, until: Until) -> None:
    code = "import gpulab, os; lease = gpulab.acquire(); os.set_inheritable(lease.held.fd, True); " + ENSURE
    run(code)
    until(lambda: record.latest(settings), "a record")
    pid = sampler.running_pid(settings)
    assert pid is not None
    environ = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"GPULAB_LEASE=" not in environ
    assert b"GPULAB_LEASE_FD=" not in environ
    assert b"GPULAB_LEASE_DIR=" in environ
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    held = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    assert not [path for path in held if "lease-" in path]
    report = json.loads(run("from gpulab.cli import main; main(['leases', '--json'])").stdout)
    assert report["leases"] == []


def test_what_a_user_tells_python_to_do_is_not_for_the_sampler(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    for name, value in (("INSPECT", "1"), ("WARNINGS", "error"), ("STARTUP", "/missing")):
        monkeypatch.setenv(f"PYTHON{name}", value)
    sampler.ensure(settings)
    until(lambda: record.latest(settings), "a record")
    pid = sampler.running_pid(settings)
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    until(lambda: sampler.running_pid(settings) is None, "its end")
    assert os.path.getsize(sampler.log_path(settings)) == 0


def test_without_a_driver_the_reason_is_published(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, own_machine: Path, until: Until
) -> None:
    scenario = own_machine / "off.json"
    scenario.write_text(json.dumps({"faults": [{"call": "nvmlInit*", "code": 9}]}))
    monkeypatch.setenv("GPULAB_SIMULATE", str(scenario))
    broken = config.load()
    assert sampler.ensure(broken)
    try:
        until(lambda: record.latest(broken), "a record")
        found = record.latest(broken)
        assert found is not None
        assert found.driver.state == "no_driver"
        assert found.driver.message
        assert found.devices == ()
    finally:
        shutil.rmtree(broken.machine_dir, ignore_errors=True)


def test_a_gpu_that_hangs_is_named_and_the_others_go_on(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, own_machine: Path, until: Until
) -> None:
    scenario = own_machine / "hang.json"
    fault = {"call": "nvmlDeviceGetMemoryInfo*", "gpu": 1, "hang": True}
    scenario.write_text(json.dumps({"devices": [{"profile": "t4", "count": 2}], "faults": [fault]}))
    monkeypatch.setenv("GPULAB_SIMULATE", str(scenario))
    hanging = config.load()
    assert sampler.ensure(hanging)

    def states() -> list[str]:
        found = record.latest(hanging)
        return [] if found is None else [device.state for device in found.devices]

    try:
        until(lambda: states() == ["ok", "unresponsive"], "the state of the GPU that hangs")
        before = record.latest(hanging)
        assert before is not None
        until(
            lambda: (now := record.latest(hanging)) is not None and now.time - before.time > 1.5,
            "more samples",
        )
        assert states() == ["ok", "unresponsive"]
        pid = sampler.running_pid(hanging)
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        until(lambda: sampler.running_pid(hanging) is None, "an end in spite of the hanging call")
    finally:
        shutil.rmtree(hanging.machine_dir, ignore_errors=True)


def test_where_nothing_can_be_written_a_reader_is_told_so_and_nothing_raises(
    own_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_machine / "file").write_text("")
    monkeypatch.setenv("GPULAB_DATA_DIR", str(own_machine / "file" / "below"))
    settings = config.load()
    assert sampler.ensure(settings) is False
    sampler.touch(settings)
    assert sampler.running_pid(settings) is None


def test_asking_costs_no_sqlite_and_no_nvml() -> None:
    loaded = run(f"{ENSURE}; import sys; print(*sorted({{'sqlite3', 'pynvml'}} & set(sys.modules)))").stdout
    assert loaded.splitlines()[1:] == [""]
