"""The extension in real kernels: what it says first, and that a kernel starts whatever is wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest

PLAIN = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]


def test_the_first_cell_says_what_the_kernel_has_and_no_other_does(place, start):
    with place.talk(start()) as session:
        first, second = session.run("1"), session.run("2")
        device = f"Tesla T4 (simulated), {place.lease().gpus[0][:12]}…"
        assert first == f"gpulab: {device} is yours (leases of this account only).\n1"
        assert second == "2"


def test_a_share_is_named_with_its_size(place, start):
    place.spec("share", memory="4GiB")
    with place.talk(start("share")) as session:
        assert session.run("1").startswith("gpulab: 4.0 GiB of Tesla T4 (simulated), GPU-")


def test_reloading_neither_repeats_the_message_nor_loses_the_lease(place, start):
    with place.talk(start()) as session:
        session.run("1")
        assert session.run("%reload_ext gpulab") == ""
        assert session.run("2") == "2"
        assert "This kernel has GPU 0" in session.run("%gpu")


def test_in_a_kernel_without_our_provisioner_it_is_silent_and_brings_the_magics(place, start):
    (place.share / "kernels" / "plain").mkdir()
    (place.share / "kernels" / "plain" / "kernel.json").write_text(
        f'{{"argv": {PLAIN!r}, "display_name": "plain", "language": "python"}}'.replace("'", '"')
    )
    with place.talk(start("plain")) as session:
        assert session.run("%load_ext gpulab") == ""
        assert session.run("1") == "1"
        assert session.run("%gpu").startswith("This kernel has no GPU: it holds no lease; `%gpu acquire`")
        assert session.run("%unload_ext gpulab") == ""
        assert "not found" in "".join(session.run("%gpu").split("`"))


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [({"call": "nvmlInit*", "code": 9}, "driver"), ({"call": "nvmlInit*", "code": 18}, "driver")],
    ids=["driver not loaded", "driver and library differ"],
)
def test_without_a_working_driver_the_kernel_says_which_and_what_still_works(
    place, start, monkeypatch, fault, sentence
):
    monkeypatch.setenv("GPULAB_SIMULATE", place.scenario(devices=[{"profile": "t4"}], faults=[fault]))
    with place.talk(start()) as session:
        first = session.run("1")
        assert first.startswith("gpulab: this kernel has no GPU: ")
        assert sentence in first
        assert "Everything that needs no GPU works" in session.run("%gpu")


def test_settings_that_cannot_be_used_give_one_sentence_and_a_kernel(place, start):
    place.spec("wrong", env={"GPULAB_POLICY": "luckiest"})
    with place.talk(start("wrong")) as session:
        said, value = session.run("1").splitlines()
        assert said.startswith("gpulab: policy is 'luckiest'; it must be one of idlest, ")
        assert value == "1"


def test_a_lease_that_has_ended_is_named(place, start):
    place.spec("ended", env={"GPULAB_LEASE": "0badc0de"})
    file = place.share / "kernels" / "ended" / "kernel.json"
    file.write_text(file.read_text().replace("gpulab-provisioner", "local-provisioner"))
    with place.talk(start("ended")) as session:
        assert session.run("1").startswith("gpulab: lease 0badc0de of this kernel has ended; restart")


def test_a_lease_directory_that_cannot_be_used_gives_its_sentence(place, start, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path / "leases")
    monkeypatch.setenv("GPULAB_LEASE_DIR", str(tmp_path / "link"))
    with place.talk(start()) as session:
        assert f"The lease directory {tmp_path / 'link'} is a link" in session.run("1")


def test_the_extension_loads_nothing_heavy():
    """Every kernel pays for it before its first cell."""
    heavy = {"pynvml", "rich", "numpy", "psutil", "anywidget", "ipywidgets", "pandas", "tornado", "zmq"}
    code = "import sys, gpulab.jupyter.extension; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not heavy & set(loaded.split())
