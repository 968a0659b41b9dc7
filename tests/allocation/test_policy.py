"""The ranking: which GPU comes first, which never, and the reason of each."""

from __future__ import annotations

import pytest

from gpulab.allocation.leases import LeaseRecord
from gpulab.allocation.policy import CONTEXT_RESERVE_BYTES, Candidate, Request, choose
from gpulab.allocation.policy import rank as rank_with
from gpulab.config import Settings
from gpulab.errors import NoFreeGpuError, NoGpuError, RequestError
from gpulab.hardware.devices import Device, DriverState, Memory, Process, Snapshot

GIB = 2**30


def device(index: int, **changes: object) -> Device:
    known: dict[str, object] = {
        "uuid": f"GPU-{index}",
        "name": "Test GPU",
        "memory": Memory(80 * GIB, 1 * GIB, 79 * GIB, 0),
        "gpu_percent": 0.0,
        "compute_mode": "default",
        "processes": (),
    }
    return Device(index, **{**known, **changes})  # type: ignore[arg-type]


def snapshot(*devices: Device) -> Snapshot:
    return Snapshot(0.0, DriverState(), devices)


def lease(uuid: str, **changes: object) -> LeaseRecord:
    known: dict[str, object] = {"user": "ann", "uid": 1001, "pid": 4711, "since": 1.0}
    return LeaseRecord("l", (uuid,), **{**known, **changes})  # type: ignore[arg-type]


def rank(
    machine: Snapshot, leases: tuple[LeaseRecord, ...], request: Request, **rules: object
) -> tuple[Candidate, ...]:
    return rank_with(machine, leases, request, Settings(**rules))  # type: ignore[arg-type]


def order(candidates: tuple[Candidate, ...]) -> list[int]:
    return [candidate.device.index for candidate in candidates if candidate.fits]


def reason(candidates: tuple[Candidate, ...], index: int) -> str:
    return next(candidate.reason for candidate in candidates if candidate.device.index == index)


def test_the_idlest_comes_first_and_says_why() -> None:
    ranked = rank(snapshot(device(0, gpu_percent=30.0), device(1), device(2, gpu_percent=5.0)), (), Request())
    assert order(ranked) == [1, 2, 0]
    assert reason(ranked, 1) == "free, 0 % busy, 1.0 GiB in use"


def test_an_unknown_never_looks_idle() -> None:
    unknown = device(0, gpu_percent=None)
    unlisted = device(1, processes=None)
    ranked = rank(snapshot(unknown, unlisted, device(2, gpu_percent=99.0)), (), Request())
    assert order(ranked) == [2, 0, 1]


def test_a_device_whose_users_cannot_be_listed_is_taken_if_its_memory_is() -> None:
    used = device(0, processes=None, memory=Memory(80 * GIB, 40 * GIB, 40 * GIB, 0))
    unknown = device(1, processes=None, memory=Memory())
    ranked = rank(snapshot(used, unknown), (), Request())
    assert order(ranked) == []
    assert "cannot be listed and 40.0 GiB is in use" in reason(ranked, 0)


def test_a_leased_gpu_names_its_holder() -> None:
    ranked = rank(snapshot(device(0), device(1)), (lease("GPU-0"),), Request())
    assert order(ranked) == [1]
    assert reason(ranked, 0).startswith("leased by ann (process 4711) since ")


def test_a_colleague_without_gpulab_is_seen_and_desktop_graphics_is_not() -> None:
    stranger = Process(99, "bob", "python", GIB, 50.0, "compute")
    desktop = Process(100, "bob", "Xorg", GIB, 1.0, "graphics")
    ranked = rank(snapshot(device(0, processes=(stranger,)), device(1, processes=(desktop,))), (), Request())
    assert order(ranked) == [1]
    assert reason(ranked, 0) == "in use without a lease by python (process 99 of bob)"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"state": "lost", "message": "The GPU has fallen off the bus; reboot."}, "fallen off the bus"),
        ({"compute_mode": "prohibited"}, "forbids compute"),
    ],
)
def test_what_can_never_serve_says_why(changes: dict[str, object], why: str) -> None:
    ranked = rank(snapshot(device(0, **changes)), (), Request())
    assert not ranked[0].usable
    assert why in ranked[0].reason
    with pytest.raises(NoGpuError, match=why):
        choose(ranked, Request())


def test_a_gpu_divided_into_slices_offers_its_slices() -> None:
    parent = device(0)
    piece = device(0, uuid="MIG-1", kind="mig", parent_uuid="GPU-0", gpu_percent=None)
    (chosen,) = choose(rank(snapshot(parent, piece), (), Request()), Request())
    assert chosen.uuid == "MIG-1"


def test_a_mask_bounds_the_choice_and_the_administrator_too() -> None:
    request = Request(visible=frozenset({"GPU-1", "GPU-2"}))
    ranked = rank(snapshot(device(0), device(1), device(2)), (), request, drained=("GPU-1",))
    assert order(ranked) == [2]
    assert reason(ranked, 0) == "outside CUDA_VISIBLE_DEVICES"
    assert reason(ranked, 1) == "taken out of service by the administrator"


def test_nine_of_eight_is_refused_with_what_is_possible() -> None:
    request = Request(gpus=9)
    ranked = rank(snapshot(*(device(i) for i in range(8))), (), request)
    with pytest.raises(
        NoGpuError, match="9 GPUs were asked for and this machine has 8 to hand out; ask for at most 8"
    ):
        choose(ranked, request)


def test_when_all_are_taken_the_sentence_names_each_holder() -> None:
    ranked = rank(snapshot(device(0), device(1)), (lease("GPU-0"), lease("GPU-1", user="bob")), Request())
    with pytest.raises(
        NoFreeGpuError,
        match=r"none of 2 is free; .*, or wait \(GPU 0: leased by ann .*; GPU 1: leased by bob",
    ):
        choose(ranked, Request())


def test_a_restart_gets_its_old_gpu_if_it_is_free() -> None:
    request = Request(prefer=("GPU-1",))
    assert order(rank(snapshot(device(0), device(1, gpu_percent=90.0)), (), request))[0] == 1


def test_shares_fit_while_their_sum_and_a_reserve_fit() -> None:
    want = Request(memory_bytes=40 * GIB)
    shares = (lease("GPU-0", mode="shared", memory_bytes=39 * GIB),)
    assert order(rank(snapshot(device(0)), shares, want)) == [0]
    too_much = want._replace(memory_bytes=41 * GIB)
    ranked = rank(snapshot(device(0)), shares, too_much)
    assert order(ranked) == []
    assert reason(ranked, 0) == "40.5 GiB of it is left to share"


def test_a_share_and_its_own_process_are_counted_once() -> None:
    used = device(0, memory=Memory(80 * GIB, 39 * GIB, 41 * GIB, 0))
    shares = (lease("GPU-0", mode="shared", memory_bytes=39 * GIB),)
    assert order(rank(snapshot(used), shares, Request(memory_bytes=40 * GIB))) == [0]


def test_exclusive_and_shared_never_mix() -> None:
    shared = lease("GPU-0", mode="shared", memory_bytes=GIB)
    assert order(rank(snapshot(device(0)), (shared,), Request())) == []
    assert order(rank(snapshot(device(0)), (lease("GPU-0"),), Request(memory_bytes=GIB))) == []


def test_shares_are_packed_so_that_whole_gpus_stay_free() -> None:
    shares = (lease("GPU-1", mode="shared", memory_bytes=8 * GIB),)
    assert order(rank(snapshot(device(0), device(1)), shares, Request(memory_bytes=GIB))) == [1, 0]


def test_a_share_larger_than_the_gpu_is_never_possible() -> None:
    request = Request(memory_bytes=80 * GIB)
    assert 80 * GIB > 80 * GIB - CONTEXT_RESERVE_BYTES
    with pytest.raises(NoGpuError, match=r"79\.5 GiB can be leased of it"):
        choose(rank(snapshot(device(0)), (), request), request)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gpus": 0}, "0 GPUs cannot be handed out; ask for one or more"),
        ({"policy": "fastest"}, "There is no policy 'fastest'; choose idlest"),
        ({"priority": "top"}, "There is no priority 'top'; choose low, normal or high"),
    ],
)
def test_a_wrong_request_is_refused_with_what_is_right(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        Request(**changes).checked()  # type: ignore[arg-type]


def test_memory_that_no_listed_process_accounts_for_does_not_look_free() -> None:
    container = device(0, memory=Memory(80 * GIB, 30 * GIB, 50 * GIB, 0))
    shared = device(1, memory=Memory(80 * GIB, 30 * GIB, 50 * GIB, None, shared_with_host=True))
    ranked = rank(snapshot(container, shared), (), Request())
    assert order(ranked) == [1]
    assert reason(ranked, 0) == "30.0 GiB of it is in use by processes that the driver does not list"


def test_unknown_use_is_not_free_to_share() -> None:
    unknown = device(0, memory=Memory(80 * GIB), processes=None)
    assert order(rank(snapshot(unknown), (), Request(memory_bytes=GIB))) == []


def test_what_strangers_use_is_not_leased_to_others_on_top() -> None:
    stranger = Process(2**22, "bob", "python", 50 * GIB, None, "compute")
    busy = device(0, memory=Memory(80 * GIB, 50 * GIB, 30 * GIB, 0), processes=(stranger,))
    share = lease("GPU-0", mode="shared", memory_bytes=25 * GIB)
    want = Request(memory_bytes=25 * GIB)
    assert order(rank(snapshot(busy), (), want)) == [0]
    assert order(rank(snapshot(busy), (share,), want)) == []
    # in a container nobody can tell whose process it is, so it may be the lease's own
    assert order(rank(snapshot(busy), (share._replace(container=True, pid=None),), want)) == [0]


def test_slices_are_handed_out_one_at_a_time() -> None:
    parts = [device(1, uuid=f"MIG-{n}", kind="mig", parent_uuid="GPU-1") for n in range(2)]
    machine = snapshot(device(0), device(1), *parts)
    (first,) = choose(rank(machine, (), Request()), Request())
    assert first.kind == "gpu"
    with pytest.raises(NoGpuError, match="a MIG slice, of which CUDA uses one per process"):
        choose(rank(machine, (), Request(gpus=2)), Request(gpus=2))


@pytest.mark.parametrize("entry", ["GPU-1", "gpu-1", "GPU-"])
def test_the_administrator_may_write_the_beginning_of_a_uuid(entry: str) -> None:
    ranked = rank(snapshot(device(0), device(1)), (), Request(), drained=(entry,))
    assert not next(candidate for candidate in ranked if candidate.device.index == 1).usable
