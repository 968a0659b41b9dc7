"""Waiting: in order, cheaply, and gone without a trace when it ends in any other way."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpulab import config
from gpulab.allocation import leases, tickets, waiting
from gpulab.allocation.directory import find
from gpulab.allocation.grants import Lease, grant
from gpulab.allocation.policy import Request
from gpulab.allocation.tickets import HeldTicket
from gpulab.config import Settings
from gpulab.errors import LeaseError, NoFreeGpuError, NoGpuError, RequestError
from gpulab.hardware import nvml
from gpulab.hardware.devices import DriverState, Snapshot

from .conftest import Script

WAIT = """
import sys
from gpulab import config
from gpulab.allocation import waiting
from gpulab.allocation.policy import Request
from gpulab.hardware import nvml
settings = config.load()
def tell(standing, reason):
    if not told:
        print(f"{standing.position} of {standing.total}", flush=True)
    told.append(reason)
told = []
request = Request(%s)
lease = waiting.wait_for_grant(
    request, settings, lambda: nvml.snapshot(detail="choice", settings=settings), None, tell
)
print("granted", lease.id, flush=True)
sys.stdin.read()
"""


class Look:
    """Looks at the simulated machine, and counts how often."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Snapshot:
        self.times += 1
        return nvml.snapshot(detail="choice")


@pytest.fixture(autouse=True)
def two_gpus(machine: Path) -> Path:
    return machine


@pytest.fixture
def settings() -> Settings:
    return config.load()


@pytest.fixture
def full(settings: Settings) -> Iterator[Lease]:
    """All GPUs are taken, by a lease of this process."""
    lease = grant(Request(gpus=2), nvml.snapshot(), settings)
    yield lease
    assert lease.held is not None
    lease.held.give_up()


def free(lease: Lease) -> None:
    assert lease.held is not None
    lease.held.give_up()


def served(
    ticket: HeldTicket, settings: Settings, look: Callable[[], Snapshot], within: float = 5.0
) -> Lease | None:
    """Attempt again and again, as those who wait do."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        lease = waiting.attempt(ticket, ticket.request(), settings, look)
        if lease is not None:
            return lease
        time.sleep(0.01)
    return None


def test_a_turn_comes_when_a_gpu_is_given_back(settings: Settings, full: Lease) -> None:
    ticket = waiting.enqueue(Request(), settings)
    assert waiting.standing(ticket, settings) == (1, 1)
    assert served(ticket, settings, Look(), within=0.3) is None
    free(full)
    lease = served(ticket, settings, Look())
    assert lease is not None
    assert lease.id == ticket.id
    assert lease.is_held()
    assert [record.id for record in leases.live_leases(settings)] == [lease.id]
    with pytest.raises(LeaseError, match="waits no longer"):
        waiting.standing(ticket, settings)
    free(lease)


def test_the_driver_is_asked_seldom_while_nothing_changes(settings: Settings, full: Lease) -> None:
    first, second = (waiting.enqueue(Request(), settings) for _ in range(2))
    look = Look()
    served(first, settings, look, within=1.0)
    assert look.times <= 5  # the first look, those soon after a change, and one for each two seconds
    behind = Look()
    served(second, settings, behind, within=1.0)
    assert behind.times <= 1
    first.give_up()
    second.give_up()


def test_two_are_served_in_the_order_in_which_they_came(settings: Settings, full: Lease) -> None:
    first, second = (waiting.enqueue(Request(gpus=2), settings) for _ in range(2))
    free(full)
    assert served(second, settings, Look(), within=0.5) is None
    lease = served(first, settings, Look())
    assert lease is not None
    assert served(second, settings, Look(), within=0.3) is None
    free(lease)
    last = served(second, settings, Look())
    assert last is not None
    free(last)


def test_a_request_without_a_ticket_does_not_pass_those_who_wait(settings: Settings, full: Lease) -> None:
    ticket = waiting.enqueue(Request(gpus=2), settings)
    free(full)
    with pytest.raises(NoFreeGpuError, match="kept for"):
        grant(Request(), nvml.snapshot(), settings)
    assert grant(Request(priority="high"), nvml.snapshot(), settings).held is not None
    ticket.give_up()


def test_one_who_does_not_answer_blocks_nobody_and_keeps_its_place(settings: Settings, full: Lease) -> None:
    stopped, second = (waiting.enqueue(Request(gpus=2), settings) for _ in range(2))
    long_ago = time.time() - 60
    os.utime(stopped.fd, (long_ago, long_ago))
    assert waiting.standing(second, settings) == (2, 2)
    free(full)
    lease = served(second, settings, Look())
    assert lease is not None
    free(lease)
    third = waiting.enqueue(Request(gpus=2), settings)
    stopped.beat()
    assert served(third, settings, Look(), within=0.3) is None
    lease = served(stopped, settings, Look())
    assert lease is not None
    third.give_up()
    free(lease)


def test_a_waiter_killed_with_sigkill_blocks_nobody(settings: Settings, full: Lease, script: Script) -> None:
    first = script(WAIT % "gpus=2")
    ticket = waiting.enqueue(Request(), settings)
    assert waiting.standing(ticket, settings) == (2, 2)
    first.kill()
    first.wait()
    free(full)
    lease = served(ticket, settings, Look())
    assert lease is not None
    free(lease)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_waiter_that_is_interrupted_leaves_no_ticket(
    settings: Settings, full: Lease, script: Script, number: signal.Signals
) -> None:
    waiter = script("import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n" + WAIT % "")
    waiter.send_signal(number)
    waiter.wait(timeout=10)
    assert tickets.waiting_now(settings) == ()
    assert find(settings).names("ticket-") == []


def test_a_waiter_interrupted_before_its_first_look_leaves_no_ticket(
    settings: Settings, full: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(waiting.Watch, "__init__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        waiting.wait_for_grant(Request(), settings, Look(), None)
    assert find(settings).names("ticket-") == []


def test_a_limit_is_kept_and_its_end_says_the_place(settings: Settings, full: Lease) -> None:
    before = waiting.enqueue(Request(), settings)
    with pytest.raises(NoFreeGpuError, match=r"After 300 ms of waiting, at place 2 of 2: 1 GPU was asked"):
        waiting.wait_for_grant(Request(), settings, Look(), 0.3)
    assert [ticket.id for ticket in tickets.waiting_now(settings)] == [before.id]
    before.give_up()


def test_whoever_does_not_wait_writes_no_ticket(settings: Settings, full: Lease) -> None:
    with pytest.raises(NoFreeGpuError):
        waiting.wait_for_grant(Request(), settings, Look(), 0)
    assert find(settings).names("ticket-") == []


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (Request(gpus=3), NoGpuError),
        (Request(memory_bytes=2**50), NoGpuError),
        (Request(gpus=2, memory_bytes=2**30), RequestError),
        (Request(policy="uuid:GPU-ffff"), NoGpuError),
    ],
    ids=str,
)
def test_what_can_never_be_served_fails_at_once_and_takes_no_ticket(
    settings: Settings, full: Lease, request_: Request, error: type[Exception]
) -> None:
    with pytest.raises(error):
        waiting.wait_for_grant(request_, settings, Look(), None)
    assert find(settings).names("ticket-") == []


def test_a_request_that_becomes_impossible_is_told(settings: Settings, full: Lease, two_gpus: Path) -> None:
    ticket = waiting.enqueue(Request(gpus=2), settings)
    two_gpus.write_text(json.dumps({"devices": [{"profile": "h100", "count": 1}]}))
    with pytest.raises(NoGpuError, match="this machine has 1 to hand out"):
        served(ticket, settings, Look(), within=20)
    assert ticket.is_held()
    ticket.give_up()


def test_a_driver_that_fails_for_a_moment_costs_no_place_and_is_told(
    settings: Settings, full: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_REFUSED_SECONDS", 0.0)
    answers = iter([Snapshot(0.0, DriverState("unresponsive", message="The driver hangs."), ())] * 2)
    look, told = Look(), list[str]()
    ticket = waiting.enqueue(Request(), settings)
    free(full)

    def see() -> Snapshot:
        return next(answers, None) or look()

    lease = waiting.stand(ticket, Request(), settings, see, tell=lambda _, reason: told.append(reason))
    assert "The driver hangs." in told
    free(lease)


def test_a_gpu_that_is_drained_meanwhile_is_told_to_one_who_waits(settings: Settings, full: Lease) -> None:
    uuids = tuple(device.uuid or "" for device in nvml.snapshot().devices)
    ticket = waiting.enqueue(Request(), settings)
    with pytest.raises(NoGpuError, match="out of service"):
        served(ticket, settings._replace(drained=uuids), Look(), within=20)
    ticket.give_up()


def test_a_ticket_is_adopted_from_the_environment_with_its_number(
    settings: Settings, full: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting.enqueue(Request(), settings)
    ticket = waiting.enqueue(Request(memory_bytes=2**30), settings)
    shared = os.dup(ticket.fd)
    os.set_inheritable(shared, True)
    monkeypatch.setenv("GPULAB_TICKET", ticket.id)
    monkeypatch.setenv("GPULAB_TICKET_FD", str(shared))
    adopted = waiting.adopt_ticket(config.load())
    assert adopted is not None
    assert (adopted.id, adopted.number, adopted.request().memory_bytes) == (ticket.id, 2, 2**30)
    assert not os.get_inheritable(shared)
    ticket.close()
    assert adopted.is_held()
    adopted.give_up()
    assert waiting.adopt_ticket(config.load()) is None


def test_a_descriptor_that_is_no_tickets_is_left_alone(
    settings: Settings, full: Lease, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ticket = waiting.enqueue(Request(), settings)
    monkeypatch.setenv("GPULAB_TICKET", ticket.id)
    with (tmp_path / "other").open("w") as other:
        monkeypatch.setenv("GPULAB_TICKET_FD", str(other.fileno()))
        assert waiting.adopt_ticket(config.load()) is None
        other.write("still open")
    ticket.give_up()


def test_whoever_shares_a_ticket_gets_the_lease_that_the_other_made_of_it(
    settings: Settings, full: Lease
) -> None:
    ticket = waiting.enqueue(Request(), settings)
    other = HeldTicket(ticket.directory, ticket.id, os.dup(ticket.fd), ticket.number)
    free(full)
    lease = served(ticket, settings, Look())
    assert lease is not None
    same = waiting.attempt(other, Request(), settings, Look())
    assert same is not None
    assert (same.id, same.gpus) == (lease.id, lease.gpus)
    free(same)
    assert not lease.is_held()


def test_a_ticket_says_from_which_devices_it_may_be_served(settings: Settings, full: Lease) -> None:
    snapshot = nvml.snapshot()
    second = snapshot.devices[1].uuid or ""
    waiting.enqueue(Request(policy=f"uuid:{second}"), settings, snapshot)
    waiting.enqueue(Request(), settings._replace(outer_devices="0"), snapshot)
    waiting.enqueue(Request(), settings, snapshot)
    within = [ticket.within for ticket in tickets.waiting_now(settings)]
    assert within == [(second,), (snapshot.devices[0].uuid,), None]
