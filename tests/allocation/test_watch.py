"""What one who waits notices, without asking the driver."""

from __future__ import annotations

import os
import signal

import pytest

from gpulab import config
from gpulab.allocation import leases, tickets
from gpulab.allocation.directory import LeaseDirectory, find
from gpulab.allocation.policy import Request
from gpulab.allocation.watch import Watch

from .conftest import Script

GPU = "GPU-00000000-0000-0000-0000-000000000001"
TAKE = f"""
import sys
from gpulab import config
from gpulab.allocation import directory, leases
found = directory.find(config.load())
with leases.guard(found):
    held = leases.take(found, gpus=({GPU!r},), mode="exclusive", memory_bytes=None, priority="normal")
print(held.id, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory() -> LeaseDirectory:
    return find(config.load())


def draw(directory: LeaseDirectory) -> tickets.HeldTicket:
    with leases.guard(directory):
        return tickets.draw(directory, Request(), within=None)


def looked(watch: Watch) -> None:
    """As one who has looked at the GPUs, and again when things had settled."""
    for _ in range(6):
        with watch.looking():
            pass


def test_the_first_look_is_due_at_once_and_the_next_when_a_lease_has_ended(
    directory: LeaseDirectory, script: Script
) -> None:
    holder = script(TAKE)
    watch = Watch(draw(directory), config.load())
    assert watch.is_due()
    looked(watch)
    assert not watch.is_due()
    holder.send_signal(signal.SIGKILL)  # which changes no name in the directory
    holder.wait()
    assert watch.is_due()
    looked(watch)
    assert not watch.is_due()


def test_a_new_lease_is_noticed_too(directory: LeaseDirectory, script: Script) -> None:
    watch = Watch(draw(directory), config.load())
    assert watch.is_due()
    looked(watch)
    assert not watch.is_due()
    script(TAKE)
    assert watch.is_due()


def test_one_behind_comes_to_the_front_when_those_before_have_gone(directory: LeaseDirectory) -> None:
    first, second, third = (draw(directory) for _ in range(3))
    watch = Watch(third, config.load())
    watch.is_due()
    assert watch.standing == (3, 3)
    looked(watch)
    second.close()  # as when it is killed: its file stays
    first.give_up()
    assert not watch.is_due()
    assert watch.standing == (1, 1)


def test_whoever_waits_far_behind_asks_less_often_and_always_shows_that_it_lives(
    directory: LeaseDirectory,
) -> None:
    line = [draw(directory) for _ in range(12)]
    front, back = Watch(line[0], config.load()), Watch(line[-1], config.load())
    front.is_due(), back.is_due()
    assert 0 < front.pause() < back.pause() < 1.0
    os.utime(line[0].fd, (1, 1))
    assert back.standing.position == 12
