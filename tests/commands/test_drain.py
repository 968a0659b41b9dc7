"""`gpulab drain` and `undrain`: root takes GPUs out of service and puts them back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import administered
from .administered import first_line

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="draining needs root")


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir(mode=0o755)
    return tmp_path / "etc" / "config.toml"


def uuids(rules: Path) -> dict[str, bool]:
    report = json.loads(administered.run(rules, "status", "--json").stdout)
    return {device["uuid"]: device["drained"] for device in report["devices"]}


def test_a_drained_gpu_is_not_handed_out_until_it_is_put_back(
    rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "2xh100")
    first, second = uuids(rules)
    before = os.umask(0o077)
    try:
        done = administered.run(rules, "drain", "0")
    finally:
        os.umask(before)
    assert (done.returncode, done.stderr) == (0, "")
    assert "is out of service: no new lease" in done.stdout
    note = rules.parent / "drained"
    assert note.stat().st_mode & 0o777 == 0o644
    assert f"\n{first}  # GPU 0 NVIDIA H100" in note.read_text()
    assert uuids(rules) == {first: True, second: False}
    took = administered.run(rules, "run", "--no-wait", "--", "printenv", "CUDA_VISIBLE_DEVICES")
    assert took.stdout.strip() == second
    again = administered.run(rules, "drain", first[:12].upper())
    assert "out of service already" in again.stdout
    assert note.read_text().count(first) == 1
    back = administered.run(rules, "undrain", first)
    assert "is back in service" in back.stdout
    assert uuids(rules) == {first: False, second: False}
    assert "in service already" in administered.run(rules, "undrain", "0").stdout


def test_who_runs_on_a_drained_gpu_is_named_and_left_alone(
    rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "1xh100")
    command = administered.command(rules, "run", "--", "sh", "-c", "echo $GPULAB_LEASE; exec sleep 60")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            lease = first_line(holder)
            done = administered.run(rules, "drain", "0")
            assert f"1 lease still runs there: {lease} of " in done.stdout
            assert holder.poll() is None
        finally:
            holder.kill()


def test_what_the_administrators_file_drains_is_put_back_there(
    rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "1xh100")
    (uuid,) = uuids(rules)
    rules.write_text(f'drained = ["{uuid[:12]}"]\n')
    refused = administered.run(rules, "undrain", "0")
    assert refused.returncode == 64
    assert f"is drained by {rules}; remove it there" in refused.stderr


def test_a_slice_of_a_drained_gpu_is_put_back_with_it(
    rules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = tmp_path / "mig.json"
    slices = [{"profile": "3g.40gb"}, {"profile": "3g.40gb"}]
    scenario.write_text(json.dumps({"devices": [{"profile": "h100", "mig": slices}]}))
    monkeypatch.setenv("GPULAB_SIMULATE", str(scenario))
    names = uuids(rules)
    one, other = (name for name in names if name.startswith("MIG-"))
    assert administered.run(rules, "drain", one).returncode == 0
    assert [name for name, drained in uuids(rules).items() if drained] == [one]
    assert administered.run(rules, "undrain", one).returncode == 0
    assert administered.run(rules, "drain", "0").returncode == 0
    assert uuids(rules)[other]
    refused = administered.run(rules, "undrain", other)
    assert (refused.returncode, "belongs to a drained GPU; run `gpulab undrain GPU-" in refused.stderr) == (
        64,
        True,
    )


@pytest.mark.parametrize(
    ("name", "what"),
    [("9", "No GPU of this machine is '9'"), ("GPU-", "begins 8 UUIDs"), ("h100", "No GPU of this machine")],
)
def test_a_name_that_fits_none_or_several_is_refused(rules: Path, name: str, what: str) -> None:
    refused = administered.run(rules, "drain", name)
    assert refused.returncode == 64
    assert what in refused.stderr
    assert not (rules.parent / "drained").exists()


def test_a_gpu_that_has_vanished_can_be_drained_by_its_full_uuid(rules: Path) -> None:
    gone = "GPU-11111111-2222-3333-4444-555555555555"
    assert administered.run(rules, "drain", gone).returncode == 0
    assert gone in (rules.parent / "drained").read_text()
    assert administered.run(rules, "undrain", gone).returncode == 0
    assert gone not in (rules.parent / "drained").read_text()


def test_a_list_that_others_may_write_is_not_rewritten(rules: Path) -> None:
    note = rules.parent / "drained"
    note.write_text("")
    note.chmod(0o666)
    refused = administered.run(rules, "drain", "0")
    assert refused.returncode == 64
    assert "is refused" in refused.stderr
    assert note.read_text() == ""


AT_ITS_PLACE = """
mount -t tmpfs tmpfs "$0" && mkdir "$0/upper" "$0/work" || exit 99
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$0/upper,workdir=$0/work" /etc || exit 99
"$@" setup --root "$0/image" >/dev/null && mkdir -p /etc/gpulab || exit 98
cp "$0/image/etc/gpulab/config.toml" /etc/gpulab
"$@" drain 0 >/dev/null && "$@" run --no-wait --explain -- true
chmod o+w /etc/gpulab/config.toml && "$@" run --no-wait -- true
"""


def test_the_rules_hold_at_their_place_in_etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With mounts of our own, so that the machine's /etc stays as it is."""
    monkeypatch.setenv("GPULAB_SIMULATE", "2xh100")
    command = ["unshare", "--mount", "sh", "-c", AT_ITS_PLACE, str(tmp_path), sys.executable, "-m", "gpulab"]
    monkeypatch.setenv("GPULAB_LEASE_DIR", str(tmp_path / "own-leases"))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode in (1, 99) and "mount" in done.stderr:
        pytest.skip(f"mounts of our own are not allowed here: {done.stderr.strip()}")
    assert "taken out of service by the administrator" in done.stderr
    assert done.returncode == 64
    assert "/etc/gpulab/config.toml is refused, because it can be written by others than root" in done.stderr
    assert not os.path.exists("/etc/gpulab/drained")
