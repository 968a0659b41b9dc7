"""The text of a lease file: read to the letter, because it may be anybody's."""

from __future__ import annotations

import json
import os
import time

import pytest

from gpulab.allocation.records import MAX_FILE_BYTES, LeaseRecord, decode, encode, pid_namespace, start_time

ID = "0badbad0"
GPU = "GPU-00000000-0000-0000-0000-000000000001"

TRUE = {
    "version": 1,
    "id": ID,
    "gpus": [GPU],
    "mode": "exclusive",
    "memory_bytes": None,
    "priority": "normal",
    "pid": 1,
    "pid_started": None,
    "pid_namespace": None,
    "since": 1.0,
}


def lying(**changes: object) -> bytes:
    return json.dumps({**TRUE, **changes}).encode()


HOSTILE = {
    "not JSON": b"{",
    "another shape": b"[]",
    "deep": b"[" * 4000,
    "empty": b"",
    "another's id": lying(id="0badbad1"),
    "a GPU that is a number": lying(gpus=[1]),
    "GPUs that are a text": lying(gpus="GPU-x"),
    "escape codes for a terminal": lying(gpus=["GPU-\x1b[31m"]),
    "half a character": lying(gpus=["GPU-\ud800"]),
    "no time": lying(since=float("nan")),
    "the end of time": lying(since=1e300),
    "before all time": lying(since=-1e15),
    "endless memory": lying(memory_bytes=10**2000, mode="shared"),
    "memory that is true": lying(memory_bytes=True, mode="shared"),
    "a pid of many digits": lying(pid=10**3000),
    "no pid": lying(pid=-1),
    "no GPU": lying(gpus=[]),
    "one GPU sixty-four times": lying(gpus=[GPU] * 64),
    "a share of no size": lying(mode="shared"),
    "idle at the end of time": lying(idle_since=1e300),
    "idle since a text": lying(idle_since="long"),
}


def test_the_text_that_the_hostile_ones_change_is_a_lease() -> None:
    record = decode(lying(), ID, 1234)
    assert record is not None
    assert (record.id, record.gpus, record.uid) == (ID, (GPU,), 1234)


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_does_not_fit_to_the_letter_is_no_lease(content: bytes) -> None:
    assert decode(content, ID, 0) is None


def test_a_claim_from_before_the_clock_was_set_back_is_still_one_and_dated_now() -> None:
    ahead = time.time() + 10 * 86400
    before = time.time()
    record = decode(lying(since=ahead, idle_since=ahead), ID, 0)
    assert record is not None
    assert before <= record.since <= time.time()
    assert before <= (record.idle_since or 0.0) <= time.time()


def test_what_is_written_is_read_again_and_always_has_one_length() -> None:
    pid = os.getpid()
    written = LeaseRecord(ID, (GPU,), "shared", 2**33, "high", pid=pid, since=1.5, idle_since=2.5)
    content = encode(written)
    assert len(content) == MAX_FILE_BYTES
    record = decode(content, ID, os.getuid())
    assert record is not None
    assert (record.mode, record.memory_bytes, record.priority, record.since) == ("shared", 2**33, "high", 1.5)
    assert (record.pid, record.pid_started, record.container) == (pid, start_time(pid), False)
    assert (record.idle_since, record.number, record.waits) == (2.5, None, False)


TICKET = LeaseRecord(
    ID, (), "exclusive", 2**33, pid=1, since=1.5, number=7, count=2, within=(GPU,), policy="name:H100"
)


def test_a_ticket_is_read_again_with_all_that_it_asks_for() -> None:
    record = decode(encode(TICKET), ID, os.getuid(), waits=True)
    assert record is not None
    assert record.waits
    assert (record.gpus, record.number, record.count) == ((), 7, 2)
    assert (record.within, record.policy, record.memory_bytes) == ((GPU,), "name:H100", 2**33)


def test_the_files_name_tells_whether_it_waits_and_not_the_text() -> None:
    becoming = encode(TICKET._replace(gpus=(GPU,)))
    ticket, lease = decode(becoming, ID, 0, waits=True), decode(becoming, ID, 0)
    assert ticket is not None
    assert (ticket.gpus, ticket.number) == ((), 7)
    assert lease is not None
    assert (lease.gpus, lease.number, lease.waits) == ((GPU,), None, False)
    assert decode(encode(TICKET), ID, 0) is None  # a lease of no GPU


@pytest.mark.parametrize(
    "change",
    [
        {"number": 0},
        {"number": True},
        {"number": 10**3000},
        {"count": 0},
        {"count": 65},
        {"within": "GPU-x"},
        {"within": ["GPU-\x1b[31m"]},
        {"within": [GPU] * 65},
        {"within": [GPU] * 2},
        {"mode": "shared", "memory_bytes": None},
        {"policy": "\x1b[31m"},
        {"policy": "x" * 101},
        {"policy": 1},
    ],
    ids=str,
)
def test_a_ticket_that_does_not_fit_to_the_letter_is_none(change: dict[str, object]) -> None:
    text = {**json.loads(encode(TICKET)), **change}
    assert decode(json.dumps(text).encode(), ID, 0, waits=True) is None


def test_the_text_of_an_earlier_version_is_still_a_lease() -> None:
    assert "idle_since" not in TRUE
    assert decode(lying(), ID, 0) is not None


def test_a_holder_in_another_namespace_has_no_pid_here() -> None:
    record = decode(lying(pid_namespace=(pid_namespace() or 0) + 1), ID, 0)
    assert record is not None
    assert (record.container, record.pid) == (True, None)
