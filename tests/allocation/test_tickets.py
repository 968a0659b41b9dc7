"""Tickets: drawn in order, alive while locked, and turned into leases without a gap."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from pathlib import Path

import pytest

from gpulab import config
from gpulab.allocation import leases, tickets
from gpulab.allocation.claims import ANSWER_SECONDS, examined
from gpulab.allocation.directory import LeaseDirectory, find
from gpulab.allocation.policy import Request
from gpulab.errors import LeaseError, NoFreeGpuError

from .conftest import Script

GPU = "GPU-00000000-0000-0000-0000-000000000001"

DRAW = """
import os, sys
from gpulab import config
from gpulab.allocation import directory, leases, tickets
from gpulab.allocation.policy import Request
found = directory.find(config.load())
with leases.guard(found):
    ticket = tickets.draw(found, Request(), within=None)
print(ticket.id, flush=True)
"""


@pytest.fixture
def directory() -> LeaseDirectory:
    return find(config.load())


def draw(directory: LeaseDirectory, request: Request | None = None) -> tickets.HeldTicket:
    with leases.guard(directory):
        return tickets.draw(directory, request or Request(), within=(GPU,))


def test_numbers_are_drawn_one_after_another_and_the_last_ones_place_is_free_again(
    directory: LeaseDirectory,
) -> None:
    first, second, third = (draw(directory) for _ in range(3))
    assert [first.number, second.number, third.number] == [1, 2, 3]
    third.give_up()
    assert draw(directory).number == 3
    waiting = tickets.waiting(directory, config.load())
    assert [record.id for record in waiting][:2] == [first.id, second.id]


def test_a_ticket_says_who_asks_for_what(directory: LeaseDirectory) -> None:
    asked = Request(memory_bytes=2**33, policy="pack", priority="low")
    ticket = draw(directory, asked)
    (record,) = tickets.waiting(directory, config.load())
    assert (record.state, record.count, record.gpus) == ("waiting", 1, ())
    assert (record.mode, record.memory_bytes, record.priority) == ("shared", 2**33, "low")
    assert (record.uid, record.pid, record.within) == (os.getuid(), os.getpid(), (GPU,))
    assert ticket.request() == asked._replace(visible=frozenset({GPU}))


def test_a_whole_gpu_with_a_cap_is_read_back_as_one(directory: LeaseDirectory) -> None:
    back = draw(directory, Request(memory_bytes=2**33, exclusive=True)).request()
    assert (back.mode, back.memory_bytes) == ("exclusive", 2**33)


def test_a_ticket_becomes_a_lease_of_the_same_id_and_descriptor(directory: LeaseDirectory) -> None:
    ticket = draw(directory)
    fd, inode = ticket.fd, os.stat(ticket.path).st_ino
    with leases.guard(directory):
        held = ticket.become_lease((GPU,))
    assert (held.id, held.fd, os.stat(held.path).st_ino) == (ticket.id, fd, inode)
    assert held.is_held()
    assert not ticket.is_held()
    assert tickets.live_tickets(directory) == ()
    (lease,) = leases.live(directory)
    assert (lease.id, lease.gpus, lease.state, lease.number) == (ticket.id, (GPU,), "active", None)
    held.give_up()
    assert leases.live(directory) == ()
    assert directory.names("") == ["guard"]


def test_whoever_shares_the_descriptor_shares_what_becomes_of_it(directory: LeaseDirectory) -> None:
    ticket = draw(directory)
    shared = tickets.HeldTicket(directory, ticket.id, os.dup(ticket.fd), ticket.number)
    with leases.guard(directory):
        ticket.become_lease((GPU,)).close()
    lease = shared.granted()
    assert lease is not None
    assert (lease.id, lease.is_held()) == (ticket.id, True)
    assert len(leases.live(directory)) == 1
    shared.give_up()
    assert leases.live(directory) == ()


def test_giving_up_a_ticket_that_another_made_a_lease_ends_the_lease(directory: LeaseDirectory) -> None:
    ticket = draw(directory)
    shared = tickets.HeldTicket(directory, ticket.id, os.dup(ticket.fd), ticket.number)
    with leases.guard(directory):
        held = ticket.become_lease((GPU,))
    shared.give_up()
    assert not held.is_held()
    assert leases.live(directory) == ()


def test_a_ticket_that_was_given_up_cannot_become_a_lease(directory: LeaseDirectory) -> None:
    ticket = draw(directory)
    os.unlink(ticket.path)
    with leases.guard(directory), pytest.raises(LeaseError, match="could not become a lease"):
        ticket.become_lease((GPU,))
    assert leases.live(directory) == ()


def test_a_killed_waiters_ticket_is_gone_at_once_and_its_file_with_the_next_call(
    directory: LeaseDirectory, script: Script
) -> None:
    process = script(DRAW + "sys.stdin.read()")
    assert len(tickets.live_tickets(directory)) == 1
    process.kill()
    process.wait()
    assert tickets.live_tickets(directory) == ()
    assert len(directory.names("ticket-")) == 1
    with leases.guard(directory):
        leases.sweep(directory)
    assert directory.names("ticket-") == []


def test_a_forked_child_neither_keeps_nor_ends_a_ticket(directory: LeaseDirectory) -> None:
    ticket = draw(directory)
    child = os.fork()
    if child == 0:
        ticket.give_up()
        os._exit(int(ticket.fd >= 0))
    assert os.waitpid(child, 0)[1] == 0
    assert ticket.is_held()
    assert len(tickets.live_tickets(directory)) == 1


def test_a_ticket_that_was_not_touched_for_long_does_not_answer_until_it_is(
    directory: LeaseDirectory,
) -> None:
    ticket = draw(directory)
    long_ago = time.time() - 2 * ANSWER_SECONDS
    os.utime(ticket.fd, (long_ago, long_ago))
    assert not tickets.live_tickets(directory)[0].answers
    ticket.beat()
    assert tickets.live_tickets(directory)[0].answers


def test_a_reader_sees_each_claim_exactly_once_while_tickets_become_leases(directory: LeaseDirectory) -> None:
    drawn: list[str] = []
    wrong: list[str] = []
    looks, stop = [0], threading.Event()

    def read() -> None:  # without the guard, as `gpulab status` does
        while not stop.is_set():
            known = list(drawn)
            found = [record.id for _, record in examined(directory) if record is not None]
            wrong.extend(claim for claim in known if found.count(claim) != 1)
            looks[0] += 1

    reader = threading.Thread(target=read)
    reader.start()
    kept = []
    for _ in range(100):
        ticket = draw(directory)
        drawn.append(ticket.id)
        with leases.guard(directory):
            kept.append(ticket.become_lease((GPU,)))
    stop.set()
    reader.join()
    assert looks[0] > 3
    assert wrong == []
    for held in kept:
        held.give_up()


def test_hostile_tickets_are_passed_over_and_counted_for_doctor(directory: LeaseDirectory) -> None:
    folder = Path(directory.path)
    os.mkfifo(folder / "ticket-00000001")
    (folder / "ticket-00000002").symlink_to("/etc/passwd")
    (folder / "ticket-\x1b[31mroot").touch()
    odd = folder / "ticket-00000003"
    odd.write_text(json.dumps({"id": "00000003", "number": 1}))
    with odd.open("rb") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        ticket = draw(directory)
        assert [record.id for record in tickets.live_tickets(directory)] == [ticket.id]
        assert leases.passed_over(directory) == 4
        assert leases.live(directory) == ()


def test_whoever_writes_a_huge_number_leaves_room_for_those_who_come_after(directory: LeaseDirectory) -> None:
    ticket = draw(directory)
    ticket.rewrite(ticket.record()._replace(number=2**53 - 1))
    assert len(tickets.live_tickets(directory)) == 1
    after = draw(directory)
    assert after.number < 2**53 - 1
    assert len(tickets.live_tickets(directory)) == 2


def test_an_account_has_a_bounded_number_of_places(
    directory: LeaseDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tickets, "MAX_TICKETS_PER_OWNER", 3)
    standing = [draw(directory) for _ in range(3)]
    with pytest.raises(NoFreeGpuError, match="3 requests of this account wait already"):
        draw(directory)
    standing[0].give_up()
    assert draw(directory).is_held()
