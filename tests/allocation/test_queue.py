"""The order of those who wait, and what it keeps for them: examples, and machines and queues at random."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gpulab.allocation.policy import CONTEXT_RESERVE_BYTES, Request, choose, rank
from gpulab.allocation.queue import before, ordered
from gpulab.allocation.records import LeaseRecord
from gpulab.config import Settings
from gpulab.errors import NoFreeGpuError, NoGpuError
from gpulab.hardware.devices import Device, DriverState, Memory, Process, Snapshot

GIB = 2**30
SEEDS = range(20)


def machine(count: int, **changes: object) -> Snapshot:
    known: dict[str, object] = {
        "memory": Memory(80 * GIB, 0, 80 * GIB, 0),
        "gpu_percent": 0.0,
        "compute_mode": "default",
        "processes": (),
    }
    devices = (
        Device(index, f"GPU-{index}", "Test GPU", **{**known, **changes})  # type: ignore[arg-type]
        for index in range(count)
    )
    return Snapshot(0.0, DriverState(), tuple(devices))


def held(gpu: int, share: int | None = None, uid: int = 7) -> LeaseRecord:
    mode = "exclusive" if share is None else "shared"
    return LeaseRecord(f"held{gpu}", (f"GPU-{gpu}",), mode, share and share * GIB, uid=uid)


def waits(number: int, share: int | None = None, **changes: object) -> LeaseRecord:
    mode = "exclusive" if share is None else "shared"
    known: dict[str, object] = {"uid": 1000 + number, "number": number, "state": "waiting"}
    memory = share and share * GIB
    return LeaseRecord(f"t{number}", (), mode, memory, **{**known, **changes})  # type: ignore[arg-type]


def granted(
    snapshot: Snapshot,
    leases: tuple[LeaseRecord, ...],
    request: Request,
    ahead: tuple[LeaseRecord, ...] = (),
    uid: int = 5,
    **rules: object,
) -> list[int]:
    """The indices of what the request gets now; empty if it must wait."""
    settings = Settings(**rules)  # type: ignore[arg-type]
    try:
        devices = choose(rank(snapshot, leases, request, settings, ahead, uid=uid), request)
    except (NoFreeGpuError, NoGpuError):
        return []
    return [device.index for device in devices]


WHOLE, SHARE = Request(), Request(memory_bytes=8 * GIB)


def test_the_queue_goes_by_priority_and_then_by_number() -> None:
    tickets = [
        waits(1, priority="low"),
        waits(4),
        waits(2),
        waits(3, priority="high"),
    ]
    line = ordered(tickets, Settings())
    assert [ticket.number for ticket in line] == [3, 2, 4, 1]
    assert [ticket.number for ticket in before(line, line[2])] == [3, 2]
    assert [ticket.number for ticket in before(line, Request())] == [3, 2, 4]
    assert [ticket.number for ticket in before(line, Request(priority="high"))] == [3]
    assert [ticket.number for ticket in before(line, Request(priority="low"))] == [3, 2, 4, 1]


def test_high_priority_in_a_file_counts_for_those_who_may_have_it_only() -> None:
    rules = Settings(who_may_raise_priority="no-such-group")
    line = ordered([waits(1), waits(2, priority="high", uid=54321), waits(3, priority="high", uid=0)], rules)
    assert [(ticket.number, ticket.priority) for ticket in line] == [
        (3, "high"),
        (1, "normal"),
        (2, "normal"),
    ]


def test_who_does_not_answer_keeps_its_place_and_holds_nobody_up() -> None:
    line = ordered([waits(1, answers=False), waits(2)], Settings())
    assert [ticket.number for ticket in line] == [1, 2]
    assert [ticket.number for ticket in before(line, WHOLE)] == [2]
    assert granted(machine(1), (), WHOLE, before(line[:1], WHOLE)) == [0]


def test_what_would_serve_those_who_wait_longer_is_kept_for_them() -> None:
    ahead = (waits(1), waits(2))
    assert granted(machine(2), (), WHOLE, ahead) == []
    assert granted(machine(3), (), WHOLE, ahead) == [2]
    ranked = rank(machine(1), (), WHOLE, Settings(), ahead[:1], uid=5)
    assert [(c.verdict, c.reason) for c in ranked] == [("kept", "kept for 1 request that waits longer")]
    with pytest.raises(NoFreeGpuError, match=r"GPU 0: kept for 1 request that waits longer"):
        choose(ranked, WHOLE)


def test_shares_go_beside_the_shares_of_those_before_them() -> None:
    ahead = tuple(waits(number, share=30) for number in (1, 2))
    assert granted(machine(1), (), Request(memory_bytes=19 * GIB), ahead) == [0]
    assert granted(machine(1), (), Request(memory_bytes=20 * GIB), ahead) == []
    assert granted(machine(1), (), WHOLE, ahead) == []


def test_a_waiting_exclusive_request_lets_the_shares_drain_from_one_gpu_and_no_other() -> None:
    leases = (held(0, share=8), held(1, share=8), held(1, share=9)._replace(id="more"))
    assert granted(machine(2), leases, SHARE, (waits(1),)) == [1]
    assert granted(machine(2), leases, SHARE, (waits(1), waits(2))) == []


def test_a_waiting_large_share_bars_smaller_ones_from_the_gpu_that_it_needs() -> None:
    assert granted(machine(1), (held(0, share=30),), SHARE, (waits(1, share=60),)) == []
    assert granted(machine(1), (held(0, share=10),), SHARE, (waits(1, share=60),)) == [0]


def test_a_share_passes_a_request_that_cannot_be_served_anyway_and_an_exclusive_one_does_not() -> None:
    leases = (held(0),)
    ahead = (waits(1, count=2),)  # one GPU is held as a whole: no share given back would help
    assert granted(machine(2), leases, SHARE, ahead) == [1]
    assert granted(machine(2), leases, WHOLE, ahead) == []


def test_a_colleague_without_a_lease_is_no_share_that_could_drain() -> None:
    stranger = Process(2**22, "bob", "python", 60 * GIB)
    used = machine(1, processes=(stranger,), memory=Memory(80 * GIB, 60 * GIB, 20 * GIB, 0))
    assert granted(used, (), SHARE, (waits(1),)) == [0]
    assert granted(used, (), SHARE, (waits(1, share=40),)) == [0]


@pytest.mark.parametrize(
    ("ticket", "rules"),
    [
        (waits(1, uid=7), {"max_gpus_per_user": 1}),
        (waits(1, count=4), {}),
        (waits(1, within=("GPU-of-elsewhere",)), {}),
        (waits(1, share=200), {}),
        (waits(1), {"max_memory_per_lease": 40 * GIB}),
    ],
    ids=["its user holds enough", "too many GPUs", "another machine's GPU", "too large", "against the rules"],
)
def test_who_cannot_be_served_for_reasons_of_its_own_holds_nobody_up(
    ticket: LeaseRecord, rules: dict[str, object]
) -> None:
    leases = (held(0, uid=7),)
    assert granted(machine(2), leases, SHARE, (ticket,), **rules) == [1]
    if "max_memory_per_lease" not in rules:
        assert granted(machine(2), leases, WHOLE, (ticket,), **rules) == [1]


def test_a_users_own_earlier_requests_count_to_the_quota() -> None:
    mine = waits(1, uid=5)
    assert granted(machine(4), (), WHOLE, (mine,), max_gpus_per_user=2) == [1]
    ranked = rank(machine(4), (), WHOLE, Settings(max_gpus_per_user=1), (mine,), uid=5)
    assert {candidate.reason for candidate in ranked} == {
        "kept until requests of yours that wait longer are served"
    }


def test_a_request_is_kept_only_from_where_the_other_may_go() -> None:
    assert granted(machine(2), (), WHOLE, (waits(1, within=("GPU-0",)),)) == [1]


def some_ticket(dice: random.Random, number: int) -> LeaseRecord:
    share = None if dice.random() < 0.4 else dice.choice((4, 8, 20, 40, 79))
    within = tuple(f"GPU-{n}" for n in range(4) if dice.random() < 0.6) if dice.random() < 0.2 else None
    return waits(
        number,
        share,
        uid=dice.randrange(1, 5),
        count=dice.choice((1, 1, 2, 3)) if share is None else 1,
        priority=dice.choice(("low", "normal", "normal", "high")),
        within=within,
        answers=dice.random() < 0.9,
    )


def as_request(ticket: LeaseRecord) -> Request:
    visible = None if ticket.within is None else frozenset(ticket.within)
    exclusive = ticket.mode == "exclusive"
    return Request(
        ticket.count, ticket.memory_bytes, exclusive=exclusive, priority=ticket.priority, visible=visible
    )


def taken(ticket: LeaseRecord, found: list[int]) -> LeaseRecord:
    return ticket._replace(gpus=tuple(f"GPU-{i}" for i in found), state="active", number=None)


def assert_not_over_committed(leases: tuple[LeaseRecord, ...], rules: Settings) -> None:
    for gpu in {gpu for lease in leases for gpu in lease.gpus}:
        here = [lease for lease in leases if gpu in lease.gpus]
        assert len(here) == 1 or all(lease.mode == "shared" for lease in here)
        assert sum(lease.memory_bytes or 0 for lease in here) <= 80 * GIB - CONTEXT_RESERVE_BYTES
    counts = Counter(lease.uid for lease in leases for _ in lease.gpus)
    assert rules.max_gpus_per_user is None or all(n <= rules.max_gpus_per_user for n in counts.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_waits_nothing_is_over_committed_and_all_are_served_in_the_end(seed: int) -> None:
    dice = random.Random(seed)
    rules = Settings(max_gpus_per_user=dice.choice((None, 3)))
    snapshot, leases = machine(4), ()
    queue = {ticket.id: ticket for ticket in (some_ticket(dice, n) for n in range(1, 25))}
    possible = {t.id for t in queue.values() if t.within is None or len(t.within) >= t.count}
    for step in range(400):
        line = ordered(queue.values(), rules)
        turn = dice.choice(line)  # waiters ask in no order of theirs
        request, ahead = as_request(turn), before(line, turn)
        found = granted(
            snapshot, leases, request, ahead, uid=turn.uid or 0, max_gpus_per_user=rules.max_gpus_per_user
        )
        if found and turn.answers:
            leases += (taken(turn, found),)
            del queue[turn.id]
        assert_not_over_committed(leases, rules)
        if leases and dice.random() < 0.3:
            leases = tuple(lease for lease in leases if lease.id != dice.choice(leases).id)
        if dice.random() < 0.3 and step < 300:
            queue = {id_: ticket._replace(answers=dice.random() < 0.9) for id_, ticket in queue.items()}
        elif step >= 300:
            queue = {id_: ticket._replace(answers=True) for id_, ticket in queue.items()}
        if not queue or not possible & set(queue):
            break
    assert not possible & set(queue)


def served_at_once(
    snapshot: Snapshot, leases: tuple[LeaseRecord, ...], line: tuple[LeaseRecord, ...]
) -> list[int | None]:
    """The numbers of those in `line` who get something if each takes its turn now, in order."""
    numbers = []
    for turn in line:
        found = granted(snapshot, leases, as_request(turn), before(line, turn))
        if found:
            numbers.append(turn.number)
            leases += (taken(turn, found),)
            line = tuple(other for other in line if other.id != turn.id)
    return numbers


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_is_served_takes_nothing_from_those_who_wait_longer(seed: int) -> None:
    dice = random.Random(seed)
    share = dice.choice((None, 20, 39))
    snapshot, leases = machine(3), tuple(held(n, share) for n in range(3) if dice.random() < 0.7)
    line = ordered((waits(n, share, priority=dice.choice(("low", "high"))) for n in range(1, 9)), Settings())
    for turn in line:
        found = granted(snapshot, leases, as_request(turn), before(line, turn))
        if found:
            earlier = before(line, turn)
            after = (*leases, taken(turn, found))
            assert served_at_once(snapshot, leases, earlier) == [ticket.number for ticket in earlier]
            assert served_at_once(snapshot, after, earlier) == [ticket.number for ticket in earlier]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_in_line_is_never_delayed_by_one_who_is_served_before_it(seed: int) -> None:
    dice = random.Random(seed)
    shares = (held(n, dice.choice((4, 20, 60))) for n in range(4) if dice.random() < 0.6)
    snapshot, leases = machine(4), tuple(shares)
    line = ordered((some_ticket(dice, n) for n in range(1, 13)), Settings())
    line = tuple(ticket for ticket in line if ticket.answers)
    first_can = bool(granted(snapshot, leases, as_request(line[0])))
    for turn in line[1:]:
        found = granted(snapshot, leases, as_request(turn), before(line, turn))
        if found and first_can:
            assert granted(snapshot, (*leases, taken(turn, found)), as_request(line[0]))


def test_an_endless_stream_of_shares_starves_no_exclusive_request() -> None:
    dice = random.Random(1)
    snapshot = machine(3)
    leases = tuple(held(n % 3, share=8)._replace(id=f"s{n}") for n in range(12))
    whole, fresh = waits(1), 12
    for _ in range(200):
        if granted(snapshot, leases, WHOLE, uid=1001):
            break
        for _ in range(3):  # shares come faster than they go
            got = granted(snapshot, leases, SHARE, before((whole,), SHARE))
            if got:
                fresh += 1
                leases += (held(got[0], share=8)._replace(id=f"s{fresh}"),)
        leases = tuple(lease for lease in leases if lease.id != dice.choice(leases).id)
    assert granted(snapshot, leases, WHOLE, uid=1001)
    assert fresh > 12, "the other GPUs go on serving shares meanwhile"
