"""What a command gets on machines with slices, unlike GPUs and masks from outside: always full UUIDs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from gpulab.hardware import nvml

from .conftest import Run

SHOW = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'])"
SLICES = [{"profile": "1g.10gb"}, {"profile": "3g.40gb"}]
DIGITS = r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An H100 in two slices and an L4; the UUIDs in the order of `gpulab status`."""
    path = tmp_path / "mixed.json"
    path.write_text(json.dumps({"devices": [{"profile": "h100", "mig": SLICES}, {"profile": "l4"}]}))
    monkeypatch.setenv("GPULAB_SIMULATE", str(path))
    found = [device.uuid or "" for device in nvml.snapshot().devices]
    nvml.shutdown()
    return found


def granted(gpulab: Run, *options: str) -> str:
    """The mask that a command gets; empty if it gets none."""
    result = gpulab("run", "--no-wait", *options, "--", sys.executable, "-c", SHOW)
    uuid, _, order = result.stdout.strip().partition(" ")
    assert order == ("PCI_BUS_ID" if uuid else ""), result.stderr
    return uuid


def test_a_slice_is_handed_out_by_its_full_uuid_and_its_gpu_never(gpulab: Run, mixed: list[str]) -> None:
    _, small, large, _ = mixed
    assert granted(gpulab, "--memory", "30GiB") == large
    assert re.fullmatch(f"MIG{DIGITS}", large)
    assert granted(gpulab, "--policy", f"uuid:{small[:16]}") == small
    assert granted(gpulab, "--policy", f"uuid:{mixed[0]}") == ""
    assert granted(gpulab, "--policy", "name:L4") == mixed[3]


@pytest.mark.parametrize(
    ("mask", "place"),
    [
        ("MIG:2", 2),
        ("short:2", 2),
        ("short:3", 3),
        ("uuid:0", 1),
    ],
    ids=["a slice", "a slice's abbreviation", "a GPU's abbreviation", "a GPU in slices"],
)
def test_whatever_a_mask_calls_a_device_the_command_gets_its_full_uuid(
    gpulab: Run, mixed: list[str], monkeypatch: pytest.MonkeyPatch, mask: str, place: int
) -> None:
    kind, _, index = mask.partition(":")
    name = mixed[int(index)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name[:12] if kind == "short" else name)
    assert granted(gpulab) == mixed[place]


@pytest.mark.parametrize(("mask", "place"), [("0", 1), ("1gpu2,-1,0", 3)])
def test_a_number_in_the_order_of_the_bus_is_a_full_uuid_to_the_command(
    gpulab: Run, mixed: list[str], monkeypatch: pytest.MonkeyPatch, mask: str, place: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert granted(gpulab) == mixed[place]


@pytest.mark.parametrize("mask", ["", "NoDevFiles", "0,0"])
def test_a_mask_that_leaves_nothing_is_not_widened(
    gpulab: Run, mixed: list[str], monkeypatch: pytest.MonkeyPatch, mask: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    result = gpulab("run", "--", "true")
    assert (result.returncode, mixed[0] in result.stdout) == (69, False)
    assert "outside CUDA_VISIBLE_DEVICES" in result.stderr


def test_a_number_without_an_order_on_unlike_gpus_is_refused_with_the_remedy(
    gpulab: Run, mixed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    result = gpulab("run", "--", "true")
    assert (result.returncode, len(result.stderr.splitlines())) == (64, 1)
    assert "set CUDA_DEVICE_ORDER=PCI_BUS_ID or use UUIDs" in result.stderr
    assert mixed


def test_a_command_in_a_command_is_bound_by_the_first_ones_mask(
    gpulab: Run, mixed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join((mixed[1], mixed[2])))
    inner = [sys.executable, "-m", "gpulab", "run", "--no-wait", "--", sys.executable, "-c", SHOW]
    first = gpulab("run", "--no-wait", "--policy", f"uuid:{mixed[1]}", "--", *inner)
    assert first.stdout.split()[0] == mixed[2], first.stderr


def test_a_privileged_container_gets_only_what_it_was_given(
    gpulab: Run, mixed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", mixed[2])
    assert granted(gpulab) == mixed[2]
    assert "outside NVIDIA_VISIBLE_DEVICES" in gpulab("run", "--gpus", "2", "--", "true").stderr
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "all")
    assert granted(gpulab) == mixed[3]
