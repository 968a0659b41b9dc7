"""`gpulab doctor`: what works, what does not, and the remedy; `gpulab setup` prepares a host."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpulab.commands.rule_checks import check_rules
from gpulab.config import Settings
from gpulab.hardware.devices import Device, DriverState, Snapshot

from . import administered
from .conftest import Run

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def findings(gpulab: Run) -> dict[str, tuple[str, str]]:
    report = json.loads(gpulab("doctor", "--json").stdout)
    assert report["schema"] == "gpulab.doctor/1"
    return {entry["subject"]: (entry["state"], entry["message"]) for entry in report["findings"]}


def test_a_simulated_machine_is_called_so_and_locks_are_tried(gpulab: Run) -> None:
    found = findings(gpulab)
    assert found["driver"][0] == "ok"
    assert "simulated" in found["driver"][1]
    assert found["devices"] == ("ok", "8 of 8 answer")
    assert found["leases"][0] == "ok"
    assert "exclude each other" in found["leases"][1]
    assert found["lease scope"][0] == "note"
    assert "sudo gpulab setup" in found["lease scope"][1]


def test_without_a_driver_it_fails_with_the_remedy(gpulab: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPULAB_SIMULATE")
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has a GPU")
    assert findings(gpulab)["driver"][0] == "fail"
    assert gpulab("doctor").returncode == 1


@pytest.mark.parametrize(
    ("code", "words"),
    [(9, "driver"), (18, "reboot"), (4, "may not open"), (999, "container")],
)
def test_each_state_of_the_driver_has_its_own_remedy(
    gpulab: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, words: str
) -> None:
    scenario = tmp_path / "machine.json"
    fault = {"call": "nvmlInit*", "code": code}
    scenario.write_text(json.dumps({"devices": [{"profile": "t4"}], "faults": [fault]}))
    monkeypatch.setenv("GPULAB_SIMULATE", str(scenario))
    state, message = findings(gpulab)["driver"]
    assert state == "fail"
    assert words in message.lower()


def test_a_mask_that_names_no_device_is_found(gpulab: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-ffffffff")
    state, message = findings(gpulab)["mask"]
    assert state == "fail"
    assert "names no device of this machine; correct or unset it" in message


def test_a_lease_directory_that_is_a_link_is_found(
    gpulab: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "leases")
    monkeypatch.setenv("GPULAB_LEASE_DIR", str(tmp_path / "link"))
    state, message = findings(gpulab)["leases"]
    assert state == "fail"
    assert "is a link" in message


def test_files_that_are_no_leases_are_named_with_their_owner_and_reason(gpulab: Run, tmp_path: Path) -> None:
    assert "leases" in findings(gpulab)
    folder = tmp_path / "leases"
    (folder / "lease-nonsense").write_text("{")
    (folder / "lease-0a0a0a0a").symlink_to("/etc/hostname")
    os.mkfifo(folder / "ticket-0b0b0b0b")
    (folder / "note-0c0c0c0c").write_text("x" * 9000)
    (folder / "mine\x1b[31m.txt").touch()
    (folder / "second").touch()
    os.link(folder / "second", folder / "stop-0d0d0d0d")
    (line,) = [line for line in gpulab("doctor").stdout.splitlines() if "passed over" in line]
    assert line.startswith(f"note  leases: 7 files in {folder}")
    me = pwd.getpwuid(os.getuid()).pw_name
    for name, reason in {
        "lease-nonsense": "its text is no lease",
        "lease-0a0a0a0a": "a link",
        "ticket-0b0b0b0b": "a FIFO",
        "note-0c0c0c0c": "too large",
        "mine?[31m.txt": "nothing of gpulab's",
        "stop-0d0d0d0d": "a second name of a file",
    }.items():
        assert f"{name} of {me} ({reason})" in line


NO_LOCKS = "int flock(int fd, int operation) { (void)fd; (void)operation; return 0; }"


def test_locks_that_are_only_pretended_are_found_by_trial(
    gpulab: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc) to build a flock that does nothing")
    (tmp_path / "no.c").write_text(NO_LOCKS)
    library = tmp_path / "no.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "no.c"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    done = gpulab("doctor")
    assert done.returncode == 1
    assert f"FAIL  leases: locks in {tmp_path / 'leases'} do not work; set GPULAB_LEASE_DIR" in done.stdout


@needs_root
def test_a_directory_that_looks_host_wide_but_may_be_private_is_told(
    gpulab: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    assert gpulab("setup", "--root", str(shared)).returncode == 0
    monkeypatch.setenv("GPULAB_LEASE_DIR", str(shared / "run" / "gpulab"))
    state, message = findings(gpulab)["lease scope"]
    if str(tmp_path).startswith("/tmp"):
        assert state == "note"
        assert (
            "counts as host-wide, but many services, sessions and all containers have a private one"
            in message
        )
    else:
        assert state == "ok"


@needs_root
def test_a_lease_directory_of_a_private_mount_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpulab: Run
) -> None:
    assert gpulab("setup", "--root", str(tmp_path / "host")).returncode == 0
    place = tmp_path / "host" / "run" / "gpulab"
    monkeypatch.setenv("GPULAB_LEASE_DIR", str(place))
    hide = 'mount -t tmpfs -o mode=1777 tmpfs "$0" && touch "$0/guard" && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", hide, str(place), sys.executable, "-m", "gpulab", "doctor"]
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare(1)")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"a mount namespace of our own is not allowed here: {done.stderr.strip()}")
    assert done.returncode == 1
    assert f"FAIL  lease scope: {place} is private to this session or service" in done.stdout


def with_rules(rules: Path, text: str) -> dict[str, list[tuple[str, str]]]:
    rules.parent.mkdir(exist_ok=True, mode=0o755)
    rules.write_text(text)
    found: dict[str, list[tuple[str, str]]] = {}
    for entry in json.loads(administered.run(rules, "doctor", "--json").stdout)["findings"]:
        found.setdefault(entry["subject"], []).append((entry["state"], entry["message"]))
    return found


def test_rules_that_cannot_be_kept_are_found_and_good_ones_are_called_good(tmp_path: Path) -> None:
    rules = tmp_path / "etc" / "config.toml"
    assert with_rules(rules, "max_gpus_per_user = 2")["rules"] == [
        ("ok", f"{rules} is root's own and understood")
    ]
    wrong = """
    who_may_raise_priority = "no-such-group"
    drained = ["GPU-ffffffff"]
    devices = ["GPU-ffffffff"]
    default_memory = "2GiB"
    max_memory_per_lease = "1GiB"
    on_idle = "stop"
    """
    found = with_rules(rules, wrong)["rules"]
    for state, what in [
        ("note", "which this machine does not know, so nobody but root may ask for priority high"),
        ("note", "drained names GPU-ffffffff, of which this machine has none now"),
        ("note", "devices names none of this simulated machine's"),
        ("note", "default_memory is more than max_memory_per_lease"),
        ("note", "without idle_after or max_lease_age nobody is idle"),
    ]:
        assert any(entry[0] == state and what in entry[1] for entry in found), (what, found)


def test_a_list_that_names_no_device_of_a_real_machine_is_a_failure() -> None:
    real = Snapshot(0.0, DriverState(), (Device(0, "GPU-1", name="T4"),))
    found = list(check_rules(real, Settings(devices=("GPU-ffffffff",))))
    assert ("fail", True) in [(f.state, "names no device of this machine" in f.message) for f in found]


def test_rules_that_are_refused_hide_no_other_finding(tmp_path: Path) -> None:
    found = with_rules(tmp_path / "etc" / "config.toml", "max_gpus_per_user = many")
    ((state, message),) = found["settings"]
    assert state == "fail"
    assert "cannot be understood" in message
    assert "Until then kernels start without a GPU." in message
    assert found["devices"] == [("ok", "8 of 8 answer")]


def test_an_accounts_own_setting_without_effect_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULAB_MAX_MEMORY_PER_LEASE", "64GiB")
    found = with_rules(tmp_path / "etc" / "config.toml", 'max_memory_per_lease = "32GiB"')
    message = "your own max_memory_per_lease: 64.0 GiB has no effect, since 32.0 GiB is tighter"
    assert found["settings"] == [("note", message)]


BROKEN = """
import sys
import jupyter_client.kernelspec
class Broken:
    def get_all_specs(self):
        return {"odd": {"spec": {}}}
jupyter_client.kernelspec.KernelSpecManager = Broken
from gpulab.cli import main
sys.argv = ["gpulab", "doctor", "--json"]
sys.exit(main())
"""


def test_a_check_that_breaks_is_a_finding_and_hides_no_other() -> None:
    # Another package that gives what nobody expected; our own code is as it is.
    result = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (1, "")
    found = {entry["subject"]: entry for entry in json.loads(result.stdout)["findings"]}
    assert found["Jupyter"]["state"] == "fail"
    assert "KeyError: 'metadata'" in found["Jupyter"]["message"]
    assert "front end" in found


def test_what_a_service_publishes_and_roots_pause_are_no_odd_files(own_machine: Path, gpulab: Run) -> None:
    leases = own_machine / "leases"
    (leases / "host").mkdir()
    assert "passed over" not in gpulab("doctor").stdout
    (leases / "elsewhere").mkdir()
    assert "elsewhere of" in gpulab("doctor").stdout
