from __future__ import annotations

from pathlib import Path

import pytest

from gpulab import config
from gpulab.allocation.directory import find
from gpulab.allocation.policy import Request
from gpulab.allocation.records import LeaseRecord
from gpulab.allocation.tickets import draw, waiting_now
from gpulab.widgets.waiters import describe_waiters

GIB = 2**30


def ticket(name: str, **changes: object) -> LeaseRecord:
    return LeaseRecord(name, (), state="waiting", user=name, since=5.0)._replace(**changes)  # type: ignore[arg-type]


def test_each_has_a_place_and_what_it_waits_for() -> None:
    tickets = [
        ticket("ada", count=2, notebook="/home/ada/train.ipynb", priority="high"),
        ticket("grace", mode="shared", memory_bytes=8 * GIB, answers=False, alias="g."),
    ]
    first, second = describe_waiters(tickets)
    assert first == {
        "place": 1,
        "who": "ada",
        "notebook": "train.ipynb",
        "for": "2 GPUs",
        "priority": "high",
        "since": 5.0,
        "answers": True,
    }
    assert (second["place"], second["who"], second["for"]) == (2, "g.", "8.0 GiB of a GPU")
    assert second["answers"] is False


def test_of_a_long_queue_the_first_are_listed_and_the_rest_counted() -> None:
    entries = describe_waiters([ticket(f"user{number}") for number in range(64)])
    assert [entry.get("place") for entry in entries[:-1]] == list(range(1, 21))
    assert entries[-1] == {"more": 44}


def test_a_ticket_that_is_drawn_is_shown_and_gone_when_given_up(
    own_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "1xt4")
    settings = config.load()
    held = draw(find(settings), Request(), within=None)
    (entry,) = describe_waiters(waiting_now(settings))
    assert (entry["place"], entry["for"]) == (1, "1 GPU")
    held.give_up()
    assert describe_waiters(waiting_now(settings)) == []
