"""`gpulab doctor`: what works, what does not, and the remedy; `gpulab setup` prepares a host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Run


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


def test_files_that_are_no_leases_are_counted(gpulab: Run, tmp_path: Path) -> None:
    assert "leases" in findings(gpulab)
    for name in ("lease-nonsense", "lease-more-nonsense"):
        (tmp_path / "leases" / name).write_text("{")
    lines = [line for line in gpulab("doctor").stdout.splitlines() if "passed over" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"note  leases: 2 files in {tmp_path / 'leases'}")


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
