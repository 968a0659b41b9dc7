from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from gpulab.allocation.records import LeaseRecord
from gpulab.config import Settings
from gpulab.hardware.devices import Device, DriverState, Memory, Process, Snapshot
from gpulab.telemetry import series
from gpulab.telemetry.reading.pieces import pieces
from gpulab.telemetry.store import Store
from gpulab.telemetry.storing.rows import Usage

NOON = 1_800_000_000.0
"""A full minute, though not a full hour."""
ALICE, BOB = 1001, 1002


class Worker(Process):
    """A process with an owner's number, as the driver's reading gives it."""

    uid: int | None = None


def process(pid: int, uid: int | None, percent: float | None, memory: int = 2**30) -> Process:
    found = Worker(pid, None if uid is None else f"user{uid}", "python", memory, percent)
    found.uid = uid
    return found


def gpu(percent: float | None, *processes: Process, watts: float | None = 100.0, **more: object) -> Device:
    return Device(
        0, "GPU-a", "T4", memory=Memory(2**34, 2**30), gpu_percent=percent, power_watts=watts,
        processes=processes, **more,
    )  # fmt: skip


def lease(name: str, uid: int, since: float = NOON, **more: object) -> LeaseRecord:
    return LeaseRecord(name, ("GPU-a",), "shared", 2**30, uid=uid, user=f"user{uid}", since=since, **more)


class Bench:
    """A machine whose seconds a test writes one by one."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.now = NOON
        self.store = Store(settings, clock=lambda: self.now)

    def run(self, seconds: int, device: Device, *leases: LeaseRecord) -> None:
        for _ in range(seconds):
            assert self.store.append(Snapshot(self.now, DriverState(), (device,)), leases)
            self.now += 1

    def usage(self, since: float = NOON, until: float | None = None) -> dict[int | None, Usage]:
        return {entry.uid: entry for entry in series.usage(self.settings, since, until or self.now - 1)}


@pytest.fixture
def bench(settings: Settings) -> Iterator[Bench]:
    found = Bench(settings)
    yield found
    found.store.close()


def test_a_sole_holder_gets_all_that_the_device_did(bench: Bench) -> None:
    own = lease("aaaaaaaa", ALICE)
    bench.run(100, gpu(50, process(1, ALICE, None)), own)
    bench.run(101, gpu(0, process(1, ALICE, None)), own)
    assert bench.usage()[ALICE] == Usage(
        ALICE,
        "user1001",
        "GPU-a",
        held_seconds=200,
        used_seconds=49.5,
        idle_seconds=101,
        energy_joules=20_000,
    )


def test_those_who_share_are_told_apart_by_their_processes(bench: Bench) -> None:
    both = (lease("aaaaaaaa", ALICE), lease("bbbbbbbb", BOB))
    bench.run(181, gpu(80, process(1, ALICE, 60), process(2, BOB, 20)), *both)
    usage = bench.usage()
    assert usage[ALICE].held_seconds == usage[BOB].held_seconds == 180
    assert usage[ALICE].used_seconds == pytest.approx(0.6 * 180)
    assert usage[BOB].used_seconds == pytest.approx(0.2 * 180)
    assert usage[ALICE].energy_joules == pytest.approx(0.75 * 18_000)
    assert usage[BOB].energy_joules == pytest.approx(0.25 * 18_000)


def test_where_processes_do_not_tell_those_at_work_share_equally(bench: Bench) -> None:
    both = (lease("aaaaaaaa", ALICE), lease("bbbbbbbb", BOB))
    bench.run(61, gpu(80, process(1, ALICE, None), process(2, BOB, None)), *both)
    bench.run(60, gpu(80, process(1, ALICE, None)), *both)
    usage = bench.usage()
    assert usage[ALICE].used_seconds == pytest.approx(0.4 * 60 + 0.8 * 60, abs=0.5)
    assert usage[BOB].used_seconds == pytest.approx(0.4 * 60, abs=0.5)
    assert usage[BOB].idle_seconds == pytest.approx(60, abs=1)


def test_work_without_a_lease_is_its_processes_own_and_held_by_nobody(bench: Bench) -> None:
    bench.run(61, gpu(40, process(1, BOB, None)))
    assert bench.usage()[BOB] == Usage(BOB, "user1002", "GPU-a", 0.0, 24.0, None, 6000)


def test_work_that_nobody_accounts_for_is_nobody_s(bench: Bench) -> None:
    bench.run(61, gpu(40))
    assert bench.usage() == {None: Usage(None, None, "GPU-a", 0.0, 24.0, None, 6000)}
    bench.run(61, gpu(0))
    assert bench.usage(NOON + 61) == {}


def test_a_guest_that_rests_takes_nothing_from_the_holder(bench: Bench) -> None:
    bench.run(61, gpu(40, process(1, ALICE, None), process(2, BOB, None)), lease("aaaaaaaa", ALICE))
    assert bench.usage()[ALICE].used_seconds == 24
    assert BOB not in bench.usage()


def test_what_could_not_be_known_is_unknown(bench: Bench) -> None:
    bench.run(61, gpu(None, process(1, ALICE, None), watts=None), lease("aaaaaaaa", ALICE))
    assert bench.usage()[ALICE] == Usage(ALICE, "user1001", "GPU-a", 60.0, None, None, None)


def test_a_lease_that_began_before_the_range_counts_from_its_beginning(bench: Bench) -> None:
    bench.run(300, gpu(50, process(1, ALICE, None)), lease("aaaaaaaa", ALICE))
    part = bench.usage(NOON + 90, NOON + 200)[ALICE]
    assert part.held_seconds == 110
    assert part.used_seconds == pytest.approx(55)
    assert part.energy_joules == pytest.approx(11_000)


def test_two_leases_of_one_account_on_a_device_hold_it_once(bench: Bench) -> None:
    bench.run(61, gpu(0), lease("aaaaaaaa", ALICE), lease("cccccccc", ALICE))
    assert bench.usage()[ALICE].held_seconds == 60


def test_a_lease_that_is_gone_after_a_killed_sampler_counts_until_it_was_last_seen(
    settings: Settings,
) -> None:
    child = os.fork()
    if child == 0:
        Bench(settings).run(100, gpu(50, process(1, ALICE, None)), lease("aaaaaaaa", ALICE))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    again = Bench(settings)
    again.now = NOON + 1000
    again.run(61, gpu(0))
    usage = again.usage()[ALICE]
    assert usage.held_seconds == pytest.approx(99, abs=5)
    assert usage.used_seconds == pytest.approx(49.5)
    span = series.leases(settings, NOON, NOON + 2000)[0]
    assert span.until == span.seen == pytest.approx(NOON + 99, abs=5)


def test_sleep_counts_neither_as_use_nor_as_energy(bench: Bench) -> None:
    own = lease("aaaaaaaa", ALICE)
    bench.run(100, gpu(50, process(1, ALICE, None), energy_joules=1e6), own)
    bench.now += 3600
    bench.run(100, gpu(50, process(1, ALICE, None), energy_joules=9e6), own)
    usage = bench.usage()[ALICE]
    assert usage.used_seconds == pytest.approx(99)
    assert usage.energy_joules == 0  # the counter stood still on both sides
    assert sum(rollup.seconds for rollup in series.rollups(bench.settings, NOON, bench.now)) <= 200


def test_usage_outlives_the_raw_samples(bench: Bench) -> None:
    own = lease("aaaaaaaa", ALICE)
    bench.run(7200, gpu(50, process(1, ALICE, None)), own)
    before = bench.usage(NOON, NOON + 7000)[ALICE]
    bench.now += 25 * 3600
    for _ in range(14):
        bench.now += 59
        bench.run(1, gpu(0))
    assert "GPU-a" not in series.samples(bench.settings, NOON, NOON + 7200)
    assert bench.usage(NOON, NOON + 7000)[ALICE].used_seconds == pytest.approx(before.used_seconds, rel=1e-3)


def test_a_change_of_terms_ends_one_span_and_begins_another(bench: Bench) -> None:
    own = lease("aaaaaaaa", ALICE)
    bench.run(10, gpu(0), own)
    bench.run(10, gpu(0), own._replace(memory_bytes=2**31))
    bench.run(10, gpu(0))
    spans = series.leases(bench.settings, NOON, NOON + 100)
    assert [(span.memory_bytes, span.since, span.until) for span in spans] == [
        (2**30, NOON, NOON + 10),
        (2**31, NOON + 10, NOON + 20),
    ]
    assert bench.usage()[ALICE].held_seconds == 20


def test_a_lease_cannot_claim_to_be_older_than_the_machine_is_up_or_the_last_look(bench: Bench) -> None:
    bench.run(10, gpu(0))
    bench.run(10, gpu(0), lease("aaaaaaaa", ALICE, since=5.0))
    assert series.leases(bench.settings, NOON, NOON + 100)[0].since >= NOON + 5


def test_a_lease_of_another_machine_s_devices_is_none_of_this_history(bench: Bench) -> None:
    """Accounts that rehearse with a simulated machine hold leases in the same directory."""
    elsewhere = lease("bbbbbbbb", BOB)._replace(gpus=("GPU-simulated",))
    bench.run(100, gpu(50), lease("aaaaaaaa", ALICE), elsewhere)
    assert bench.usage().keys() == {ALICE}
    assert [span.id for span in series.leases(bench.settings, NOON, bench.now)] == ["aaaaaaaa"]


def test_in_a_gap_there_is_no_part_of_the_minute_or_hour_around_it(bench: Bench) -> None:
    own = lease("aaaaaaaa", ALICE)
    bench.run(70, gpu(50, process(1, ALICE, None)), own)
    gap = bench.now
    bench.now += 40
    bench.run(4000, gpu(50, process(1, ALICE, None)), own)
    within = bench.usage(gap + 5, gap + 15)[ALICE]
    assert (within.held_seconds, within.used_seconds, within.energy_joules) == (10, None, None)
    assert pieces(bench.settings, gap + 5, gap + 15) == []
    assert bench.usage(NOON, gap + 20)[ALICE].used_seconds == pytest.approx(69 * 0.5)
