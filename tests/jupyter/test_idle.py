"""When a kernel counts as idle, judged by an injected clock."""

from __future__ import annotations

import os

import pytest

from gpulab.allocation.records import LeaseRecord, start_time
from gpulab.hardware.devices import Device, DriverState, Memory, Process, Snapshot
from gpulab.jupyter.idle import Look, Rest, Rule, look_every, rule_for, uses_gpu
from gpulab.settings import Settings

GIB = 2**30
NOW = 1_800_000_000.0
HOUR = 3600.0
OWN = LeaseRecord(
    "0badc0de", ("GPU-a",), user="ann", pid=os.getpid(), pid_started=start_time(os.getpid()), since=NOW
)
T4 = Device(0, "GPU-a", "Tesla T4", sampled_at=NOW, memory=Memory(16 * GIB, 0), gpu_percent=0.0, processes=())
MINE = Process(os.getpid(), "ann", "python", GIB, gpu_percent=0.0)


def seen(*devices: Device, lease: LeaseRecord = OWN, others: tuple[LeaseRecord, ...] = ()) -> bool | None:
    return uses_gpu(lease, (lease, *others), Snapshot(NOW, DriverState(), devices), NOW)


def t4(*processes: Process, **changes: object) -> Device:
    memory = Memory(16 * GIB, sum(process.memory_bytes or 0 for process in processes))
    return T4._replace(processes=processes, memory=memory)._replace(**changes)


def test_a_gpu_that_no_process_is_on_is_not_used():
    assert seen(t4()) is False


@pytest.mark.parametrize(("percent", "used"), [(0.0, False), (1.0, True), (87.0, True)])
def test_its_own_process_decides_whatever_the_neighbours_do(percent, used):
    neighbour = Process(1, "root", "python", GIB, gpu_percent=95.0)
    device = t4(MINE._replace(gpu_percent=percent), neighbour, gpu_percent=95.0)
    assert seen(device) is used


@pytest.mark.parametrize(("device", "used"), [(0.0, False), (3.0, None), (None, None)])
def test_where_the_process_is_not_measured_only_a_resting_device_tells(device, used):
    assert seen(t4(MINE._replace(gpu_percent=None), gpu_percent=device)) is used


@pytest.mark.parametrize(
    "device",
    [
        T4._replace(processes=None),
        T4._replace(state="lost"),
        T4._replace(state="unresponsive"),
        T4._replace(sampled_at=NOW - 60),
        T4._replace(sampled_at=None),
        T4._replace(uuid="GPU-b"),
    ],
    ids=["unlisted", "lost", "unresponsive", "stale", "never sampled", "another one"],
)
def test_a_device_that_cannot_be_read_is_not_known_to_rest(device):
    assert seen(device) is None


def test_a_driver_that_is_off_is_not_known_to_rest():
    assert uses_gpu(OWN, (OWN,), Snapshot(NOW, DriverState("unresponsive")), NOW) is None


def test_of_several_gpus_one_that_works_is_enough_and_one_unknown_leaves_it_open():
    lease = OWN._replace(gpus=("GPU-a", "GPU-b"))
    busy = t4(MINE._replace(gpu_percent=9.0), uuid="GPU-b")
    assert seen(t4(), busy, lease=lease) is True
    assert seen(t4(processes=None), busy, lease=lease) is True
    assert seen(t4(), lease=lease) is None
    assert seen(t4(), t4(uuid="GPU-b"), lease=lease) is False


def test_a_process_that_left_its_parents_counts_and_that_of_another_account_or_lease_does_not():
    away = Process(1, "ann", "python", GIB, gpu_percent=50.0)
    assert seen(t4(away)) is True
    assert seen(t4(away._replace(user="bob"))) is False
    assert seen(t4(away._replace(type="graphics"))) is False  # her desktop
    other = LeaseRecord("feedbeef", ("GPU-a",), user="ann", pid=1, pid_started=start_time(1))
    assert seen(t4(away), others=(other,)) is False


def test_what_cannot_be_seen_may_be_its_own():
    hidden = Process(4_194_303, None, None, GIB, gpu_percent=20.0)
    assert seen(t4(hidden)) is True
    assert seen(t4(hidden._replace(gpu_percent=None), gpu_percent=20.0)) is None
    assert (
        seen(t4(memory=Memory(16 * GIB, 8 * GIB), gpu_percent=20.0)) is None
    )  # a container's, by its memory
    assert seen(t4(gpu_percent=20.0)) is None  # or by its work alone


IDLE = Look("idle", "m", False)
RULE = Rule(idle=60.0, grace=30.0)


def follow(*looks: tuple[float, Look], rule: Rule | None = RULE) -> Rest:
    rest = Rest()
    for now, look in looks:
        rest = rest.after(look, now, rule)
    return rest


def test_a_rest_lasts_from_the_first_look_that_saw_it():
    rest = follow((100, IDLE), (159, IDLE))
    assert (rest.since, rest.idle_from) == (100, None)
    assert follow((100, IDLE), (160, IDLE)).idle_from == 160


@pytest.mark.parametrize(
    "look",
    [
        IDLE._replace(execution_state="busy"),
        IDLE._replace(execution_state="starting"),
        IDLE._replace(execution_state=None),
        IDLE._replace(uses_gpu=True),
        IDLE._replace(uses_gpu=None),
    ],
)
def test_whoever_works_or_cannot_be_known_to_rest_begins_anew(look):
    rest = follow((100, IDLE), (300, look))
    assert (rest.since, rest.idle_from) == (None, None)
    assert follow((100, IDLE), (300, look), (310, IDLE)).since == 310


def test_a_cell_that_ran_between_two_looks_ends_the_rest_too():
    rest = follow((100, IDLE), (300, IDLE), (310, IDLE._replace(mark="n")))
    assert (rest.since, rest.idle_from) == (310, None)


def test_it_may_be_reclaimed_only_when_its_user_has_had_the_grace_to_come_back():
    rest = follow((100, IDLE), (160, IDLE), (170, IDLE))
    assert not rest.is_reclaimable(189, RULE)
    assert rest.is_reclaimable(190, RULE)
    assert not rest.is_reclaimable(190, None)


def test_a_rule_that_becomes_stricter_still_leaves_the_grace():
    rest = follow((100, IDLE), (5000, IDLE), rule=None).after(IDLE, 5010, RULE)
    assert rest.idle_from == 5010
    assert not rest.is_reclaimable(5039, RULE)


def test_without_rules_no_kernel_is_ever_idle():
    assert rule_for(Settings(), 1e9) is None
    assert follow((0, IDLE), (1e9, IDLE), rule=None).idle_from is None


@pytest.mark.parametrize(
    ("settings", "age", "rule"),
    [
        (Settings(idle_after=2 * HOUR), 0, Rule(2 * HOUR, 600)),
        (Settings(idle_after=120), 0, Rule(120, 120)),
        (Settings(max_lease_age=8 * HOUR), 8 * HOUR - 1, None),
        (Settings(max_lease_age=8 * HOUR), 8 * HOUR, Rule(60, 600)),
        (Settings(idle_after=HOUR, max_lease_age=8 * HOUR), HOUR, Rule(HOUR, 600)),
        (Settings(idle_after=HOUR, max_lease_age=8 * HOUR), 9 * HOUR, Rule(60, 600)),
        (Settings(idle_after=20, max_lease_age=8 * HOUR), 9 * HOUR, Rule(20, 20)),
    ],
)
def test_the_rule_follows_from_the_settings_and_the_leases_age(settings, age, rule):
    assert rule_for(settings, age) == rule


def test_the_server_looks_often_enough_for_its_settings():
    assert look_every(Settings()) == 10
    assert look_every(Settings(idle_after=HOUR)) == 10
    assert look_every(Settings(idle_after=8)) == 2
