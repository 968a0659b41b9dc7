"""CUDA_VISIBLE_DEVICES as CUDA reads it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulab.config import Settings
from gpulab.errors import RequestError
from gpulab.hardware import cuda_order
from gpulab.hardware.devices import Device
from gpulab.hardware.mask import bounds, visible_uuids
from gpulab.hardware.states import denied

A, B, C = "GPU-aaaa1111-x", "GPU-aaaa2222-x", "GPU-bbbb3333-x"
M = "MIG-cccc4444-x"
DEVICES = (
    Device(0, A, "H100"),
    Device(1, B, "H100"),
    Device(1, M, "H100 MIG 1g.10gb", kind="mig", parent_uuid=B),
    Device(2, C, "H100"),
)


@pytest.mark.parametrize(
    ("mask", "visible"),
    [
        ("0", {A}),
        ("2,0", {A, C}),
        (" 2 , 0 ", {A, C}),
        ("2gpu0", {C}),
        ("+2", {C}),
        ("002", {C}),
        ("0x2", {A}),
        ("--2", set()),
        ("2147483648,0", set()),
        ("0,", {A}),
        (",0", set()),
        ("0,00", set()),
        (f"{A},GPU-aaaa1", set()),
        ("1", {M}),
        (B, {M}),
        (f"{A},{B}", {A, M}),
        ("0,1,2", {A, M, C}),
        (f"{B},{B}", set()),
        (A, {A}),
        (f"{C},{A}", {A, C}),
        ("GPU-b", {C}),
        ("GPU-aaaa1", {A}),
        (M, {M}),
        ("MIG-cccc", {M}),
        ("", set()),
        ("-1", set()),
        ("none", set()),
        ("NoDevFiles", set()),
        ("void", set()),
        ("0,-1,1", {A}),
        ("0,7,1", {A}),
        ("0,,1", {A}),
        ("0,x,1", {A}),
        ("9", set()),
        ("0,0", set()),
        (f"{A},{C},{A}", set()),
        ("GPU-a", set()),
        ("GPU-ffff", set()),
        (f"{A},GPU-ffff,{C}", {A}),
        (f"{A},1", {A}),
        (f"0,{C}", {A}),
        (f"{M},{A}", {M}),
        (f"{M},0", {M}),
        ("MIG-GPU-ffff/7/0", set()),
        (f"{A},{M}", {A}),
        (A.lower(), set()),
    ],
)
def test_a_mask_leaves_what_cuda_would_see(mask: str, visible: set[str]) -> None:
    assert visible_uuids(DEVICES, mask, None) == visible


def test_no_mask_is_not_an_empty_one() -> None:
    assert visible_uuids(DEVICES, None, None) is None
    assert visible_uuids(DEVICES, "", None) == frozenset()


def test_a_number_among_different_gpus_needs_the_order() -> None:
    mixed = (Device(0, A, "T4"), Device(1, B, "H100"))
    with pytest.raises(RequestError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        visible_uuids(mixed, "0", None)
    with pytest.raises(RequestError):
        visible_uuids(mixed, "0", "FASTEST_FIRST")
    assert visible_uuids(mixed, "0", "PCI_BUS_ID") == {A}
    assert visible_uuids(mixed, B, None) == {B}
    assert visible_uuids(mixed, "-1", None) == frozenset()


def test_a_gpu_that_cannot_name_itself_ends_the_mask() -> None:
    broken = (Device(0, A, "H100"), Device(1, None, None, state="error"), Device(2, C, "H100"))
    assert visible_uuids(broken, "0,1,2", "PCI_BUS_ID") == {A}


def test_slices_that_older_drivers_name_by_their_instances_are_known_by_those_names_alone() -> None:
    first, second = f"MIG-{A}/7/0", f"MIG-{A}/8/0"
    old = (
        Device(0, A),
        Device(0, first, kind="mig", parent_uuid=A),
        Device(0, second, kind="mig", parent_uuid=A),
    )
    assert visible_uuids(old, second, None) == {second}
    assert visible_uuids(old, f"{first},{second}", None) == {first, second}
    assert visible_uuids(old, f"{first},MIG-{A}/9/0,{second}", None) == {first}


def test_an_old_name_on_a_newer_driver_is_not_guessed() -> None:
    with pytest.raises(RequestError, match="use the UUID that `gpulab status` shows"):
        visible_uuids(DEVICES, f"MIG-{B}/7/0", None)
    assert visible_uuids(DEVICES, f"MIG-{A}/7/0", None) == frozenset()  # that GPU has no slices


def test_a_gpu_that_another_job_keeps_is_not_counted() -> None:
    others = Device(0, None, None, state="error", message=denied(0))
    machine = (others, Device(1, A, "H100"), Device(2, C, "H100"))
    assert visible_uuids(machine, "0", None) == {A}
    assert visible_uuids(machine, "1,2", None) == {C}


@pytest.mark.parametrize(
    ("given", "mask", "within"),
    [
        (None, None, None),
        ("all", None, None),
        ("void", "0", {A}),
        ("0", None, None),
        ("GPU-of-elsewhere", None, None),
        (C, None, {C}),
        (f"{A}, {C}", "0", {A}),
        (f"{C}::3", None, {C}),
        (C, "0", set()),
        (M, None, {M}),
        (B, None, {B, M}),
        ("/var/run/nvidia-container-devices", None, None),
    ],
)
def test_a_privileged_container_is_bound_by_the_uuids_it_was_given(
    given: str | None, mask: str | None, within: set[str] | None
) -> None:
    settings = Settings(container_devices=given, outer_devices=mask)
    assert bounds(DEVICES, settings) == (None if within is None else frozenset(within))


FAKE_CUDA = """
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) { return getenv("CUDA_VISIBLE_DEVICES") ? 100 : 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device) {
    const char *order = getenv("CUDA_DEVICE_ORDER");
    int fast = order == NULL || strcmp(order, "PCI_BUS_ID");
    memset(uuid, (fast ? !device : device) ? 0xbb : 0xaa, 16);
    return 0;
}
"""
SLOW, FAST = (f"GPU-{d * 8}-{d * 4}-{d * 4}-{d * 4}-{d * 12}" for d in "ab")
UNLIKE = (Device(0, SLOW, "T4"), Device(1, FAST, "H100"))


@pytest.fixture
def cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A libcuda of two unlike GPUs, the faster one second on the bus."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a libcuda with")
    (tmp_path / "cuda.c").write_text(FAKE_CUDA)
    library = str(tmp_path / "libcuda.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(tmp_path / "cuda.c")], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    cuda_order.cuda_order.cache_clear()
    yield
    cuda_order.cuda_order.cache_clear()


@pytest.mark.usefixtures("cuda")
def test_a_number_among_different_gpus_is_looked_up_in_cudas_own_order() -> None:
    assert visible_uuids(UNLIKE, "0", None) == {FAST}
    assert visible_uuids(UNLIKE, "1", "FASTEST_FIRST") == {SLOW}
    assert visible_uuids(UNLIKE, "0", "PCI_BUS_ID") == {SLOW}


@pytest.mark.usefixtures("cuda")
def test_an_order_of_other_gpus_is_no_answer() -> None:
    with pytest.raises(RequestError, match="depends on their speed"):
        visible_uuids((Device(0, A, "T4"), Device(1, C, "H100")), "0", None)


def test_without_libcuda_a_number_among_different_gpus_is_not_guessed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    cuda_order.cuda_order.cache_clear()
    with pytest.raises(RequestError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        visible_uuids(UNLIKE, "0", None)
