"""What is asked for, under the administrator's rules."""

from __future__ import annotations

import pytest

from gpulab.allocation.policy import Request
from gpulab.config import Settings
from gpulab.errors import RequestError
from gpulab.hardware.devices import Device

GIB = 2**30


def applied(request: Request, uid: int = 54321, **rules: object) -> Request:
    return request.applied(Settings(**rules), uid=uid)  # type: ignore[arg-type]


def test_who_names_nothing_gets_the_default_share_and_who_names_something_gets_that() -> None:
    assert applied(Request(), default_memory=8 * GIB) == Request(memory_bytes=8 * GIB)
    for request in (Request(gpus=2), Request(exclusive=True), Request(memory_bytes=9 * GIB)):
        assert applied(request, default_memory=8 * GIB) == request
    assert applied(Request()) == Request()


def test_the_default_share_is_no_larger_than_a_lease_may_be() -> None:
    assert applied(Request(), default_memory=8 * GIB, max_memory_per_lease=4 * GIB).memory_bytes == 4 * GIB


@pytest.mark.parametrize(
    ("request_", "rules", "sentence"),
    [
        (
            Request(gpus=3),
            {"max_gpus_per_user": 2},
            "3 GPUs were asked for, and the administrator allows each user 2; ask for at most 2",
        ),
        (
            Request(memory_bytes=9 * GIB),
            {"max_memory_per_lease": 8 * GIB},
            r"A share of 9\.0 GiB was asked for, and the administrator allows a lease 8\.0 GiB",
        ),
        (
            Request(priority="high"),
            {"who_may_raise_priority": "no-such-group"},
            "Only members of the group no-such-group may ask for priority high; ask for normal",
        ),
        (Request(gpus=2, memory_bytes=GIB), {}, "A share is of one GPU, and 2 were asked for; ask for one"),
        (Request(policy="uuid:"), {}, "There is no policy 'uuid:'; choose idlest, pack, .*uuid:PREFIX"),
        (Request(policy="colour:red"), {}, "There is no policy 'colour:red'"),
    ],
)
def test_what_the_rules_do_not_allow_is_refused_in_one_sentence(
    request_: Request, rules: dict[str, object], sentence: str
) -> None:
    with pytest.raises(RequestError, match=sentence):
        applied(request_, **rules)


def test_several_whole_gpus_may_have_a_cap_and_root_may_raise_its_priority() -> None:
    whole = Request(gpus=2, memory_bytes=GIB, exclusive=True)
    assert applied(whole, max_memory_per_lease=8 * GIB) == whole
    urgent = Request(priority="high")
    assert applied(urgent, uid=0, who_may_raise_priority="no-such-group") == urgent


def test_a_ticket_names_the_devices_that_mask_and_policy_leave() -> None:
    devices = [Device(0, "GPU-a1", "L4"), Device(1, "GPU-a2", "H100"), Device(2, "GPU-b3", "H100")]
    assert Request().within(devices) is None
    assert Request(visible=frozenset({"GPU-b3", "GPU-a1"})).within(devices) == ("GPU-a1", "GPU-b3")
    assert Request(policy="uuid:gpu-A").within(devices) == ("GPU-a1", "GPU-a2")
    assert Request(policy="name:h100", visible=frozenset({"GPU-a1", "GPU-a2"})).within(devices) == ("GPU-a2",)
    assert Request(policy="name:T4").within(devices) == ()
