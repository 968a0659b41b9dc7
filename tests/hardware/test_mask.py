"""CUDA_VISIBLE_DEVICES as CUDA reads it."""

from __future__ import annotations

import pytest

from gpulab.errors import RequestError
from gpulab.hardware.devices import Device
from gpulab.hardware.mask import visible_uuids

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
        (" 1 , 2 ", {B, C}),
        ("1gpu2", {B}),
        ("+1", {B}),
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
        (f"{A},{B},{A}", set()),
        ("GPU-a", set()),
        ("GPU-ffff", set()),
        (f"{A},GPU-ffff,{C}", {A}),
        (f"{A},1", {A}),
        (f"0,{B}", {A}),
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
