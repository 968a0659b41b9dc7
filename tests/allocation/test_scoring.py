"""Each policy's order, and the words in which it explains itself."""

from __future__ import annotations

import pytest

from gpulab.allocation.policy import Candidate, Request, explain, rank
from gpulab.allocation.records import LeaseRecord
from gpulab.config import Settings
from gpulab.hardware.devices import Device, DriverState, Memory, Snapshot

GIB = 2**30
LAST = " (after the others, since its utilization cannot be known)"


def device(index: int, size: int = 80, used: int = 1, **changes: object) -> Device:
    known: dict[str, object] = {
        "uuid": f"GPU-{index}",
        "name": f"Test {size}",
        "memory": Memory(size * GIB, used * GIB, (size - used) * GIB, 0),
        "gpu_percent": 0.0,
        "temperature_celsius": 40.0,
        "compute_mode": "default",
        "processes": (),
    }
    return Device(index, **{**known, **changes})  # type: ignore[arg-type]


def slices(parent: int, count: int) -> list[Device]:
    return [
        device(
            parent, 10, 0, uuid=f"MIG-{parent}{n}", kind="mig", parent_uuid=f"GPU-{parent}", gpu_percent=None
        )
        for n in range(count)
    ]


def lease(gpu: str, share: int | None = None) -> LeaseRecord:
    return LeaseRecord(f"l{gpu}", (gpu,), "exclusive" if share is None else "shared", share and share * GIB)


def ranked(devices: list[Device], request: Request, *leases: LeaseRecord) -> tuple[Candidate, ...]:
    return rank(Snapshot(0.0, DriverState(), tuple(devices)), leases, request, Settings())


def order(candidates: tuple[Candidate, ...]) -> list[str | None]:
    return [candidate.device.uuid for candidate in candidates if candidate.fits]


MIXED = [
    device(0, 80, 3, gpu_percent=50.0, temperature_celsius=60.0),
    device(1, 24, 1, gpu_percent=5.0, temperature_celsius=35.0),
    device(2, 80, 4, gpu_percent=0.0, temperature_celsius=50.0),
    device(3, 48, 2, gpu_percent=5.0, temperature_celsius=None),
]


@pytest.mark.parametrize(
    ("policy", "whole", "share"),
    [
        ("idlest", [2, 1, 3, 0], [1, 3, 2, 0]),
        ("pack", [1, 3, 0, 2], [2, 1, 3, 0]),
        ("spread", [2, 1, 3, 0], [0, 2, 3, 1]),
        ("most-free-memory", [0, 2, 3, 1], [0, 2, 3, 1]),
        ("coolest", [1, 2, 0, 3], [1, 2, 0, 3]),
        ("uuid:GPU-3", [3], [3]),
        ("uuid:3", [3], [3]),
        ("name:test 80", [2, 0], [2, 0]),
    ],
)
def test_each_policy_has_its_order_for_whole_gpus_and_for_shares(
    policy: str, whole: list[int], share: list[int]
) -> None:
    assert order(ranked(MIXED, Request(policy=policy))) == [f"GPU-{index}" for index in whole]
    wanted = Request(memory_bytes=GIB, policy=policy)
    assert order(ranked(MIXED, wanted)) == [f"GPU-{index}" for index in share]


def test_pack_fills_a_shared_gpu_and_spread_leaves_it_alone() -> None:
    devices, held = [device(0, 24), device(1), device(2)], lease("GPU-2", 8)
    assert order(ranked(devices, Request(memory_bytes=GIB, policy="pack"), held))[0] == "GPU-2"
    assert order(ranked(devices, Request(memory_bytes=GIB, policy="spread"), held)) == [
        "GPU-1",
        "GPU-0",
        "GPU-2",
    ]
    assert order(ranked(devices, Request(memory_bytes=GIB, policy="idlest"), held))[0] == "GPU-0"


def test_slices_are_packed_beside_leased_ones_or_spread_over_gpus() -> None:
    devices = [device(0), *slices(0, 2), device(1), *slices(1, 2)]
    held = lease("MIG-10")
    assert order(ranked(devices, Request(policy="pack"), held)) == ["MIG-11", "MIG-00", "MIG-01"]
    assert order(ranked(devices, Request(policy="spread"), held)) == ["MIG-00", "MIG-01", "MIG-11"]


def test_a_slice_is_as_warm_as_its_gpu() -> None:
    devices = [
        device(0, temperature_celsius=70.0),
        *(part._replace(temperature_celsius=None) for part in slices(0, 1)),
        device(1, temperature_celsius=40.0),
        *(part._replace(temperature_celsius=None) for part in slices(1, 1)),
    ]
    first = ranked(devices, Request(policy="coolest"))[0]
    assert (first.device.uuid, first.reason) == ("MIG-10", f"free, 40 °C, the coolest first{LAST}")


@pytest.mark.parametrize("policy", ["idlest", "pack", "spread", "most-free-memory", "coolest", "name:Test"])
@pytest.mark.parametrize("unknown", [{"gpu_percent": None}, {"processes": None}])
@pytest.mark.parametrize("share", [None, GIB])
def test_a_gpu_of_which_something_is_unknown_comes_last_under_every_policy(
    policy: str, unknown: dict[str, object], share: int | None
) -> None:
    hidden = device(0, 80, 0, temperature_celsius=20.0, **unknown)
    known = device(1, 80, 3, gpu_percent=90.0, temperature_celsius=80.0)
    request = Request(memory_bytes=share, policy=policy)
    assert order(ranked([hidden, known], request, *([lease("GPU-0", 1)] if share else ()))) == [
        "GPU-1",
        "GPU-0",
    ]


def test_unknown_memory_comes_last_for_whole_gpus_and_is_not_shared() -> None:
    hidden, known = device(0, memory=Memory()), device(1, gpu_percent=99.0)
    assert order(ranked([hidden, known], Request())) == ["GPU-1", "GPU-0"]
    assert order(ranked([hidden, known], Request(memory_bytes=GIB))) == ["GPU-1"]


@pytest.mark.parametrize(
    ("policy", "whole", "share"),
    [
        ("idlest", "free, 7 % busy, 1.0 GiB in use", "78.5 GiB left to share, the tightest fit first"),
        ("pack", "free, 80.0 GiB, the smallest first", "78.5 GiB left to share beside 0 other shares"),
        (
            "spread",
            "free, 7 % busy, the one with the fewest neighbours",
            "beside 0 other shares, the GPU with",
        ),
        ("most-free-memory", "free, 79.0 GiB of memory free, the most", "78.5 GiB left to share, the most"),
        ("coolest", "free, 40 °C, the coolest first", "78.5 GiB left to share, 40 °C, the coolest first"),
        ("uuid:GPU-0", "in use, named by uuid:GPU-0", "stay free, named by uuid:GPU-0"),
    ],
)
def test_each_policy_explains_itself_in_its_own_words(policy: str, whole: str, share: str) -> None:
    devices = [device(0, gpu_percent=7.0)]
    assert whole in ranked(devices, Request(policy=policy))[0].reason
    assert share in ranked(devices, Request(memory_bytes=GIB, policy=policy))[0].reason


def test_what_a_policy_does_not_name_is_never_given() -> None:
    candidates = ranked(MIXED, Request(policy="uuid:GPU-3"))
    assert [c.verdict for c in candidates] == ["free", "never", "never", "never"]
    assert candidates[1].reason == "not what uuid:GPU-3 names"


def test_the_explanation_names_the_policy_and_has_an_aligned_line_for_each_device() -> None:
    devices = [device(0), device(1), *slices(1, 2), device(10)]
    policy, *lines = explain(ranked(devices, Request(policy="pack"), lease("GPU-10")))
    assert policy == "By policy pack, best first:"
    assert [line.split()[:2] for line in lines[:3]] == [["GPU", "0"], ["MIG", "1.0"], ["MIG", "1.1"]]
    assert {line.index("free") for line in lines[:3]} == {lines[0].index("free")}
    assert lines[3].index("taken") == lines[0].index("free")
    assert "leased by" in lines[3]
    assert "divided into MIG slices" in lines[4]
    assert explain(()) == ["There is no GPU to choose from; `gpulab doctor` says why."]
