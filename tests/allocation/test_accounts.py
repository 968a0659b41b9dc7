"""Several accounts on one host: each takes, each sees the others, none can break or drown another."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpulab import config
from gpulab.allocation import leases, tickets
from gpulab.allocation.claims import MAX_FILES_PER_OWNER
from gpulab.allocation.directory import LeaseDirectory
from gpulab.allocation.policy import Request

from .conftest import Script

GPU = "GPU-00000000-0000-0000-0000-000000000001"
ADA, BOB = 54321, 54322
PROTECTED = Path("/proc/sys/fs/protected_regular")

AS = """
import fcntl, os, pwd, random, sys, json, time
from gpulab import config
from gpulab.allocation import claims, directory, leases, status, tickets
from gpulab.allocation.policy import Request
os.umask(0o077)
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
found = directory.find(config.load())
"""
TAKE = f"""
with leases.guard(found):
    leases.sweep(found)
    held = leases.take(found, gpus=({GPU!r},), mode="shared", memory_bytes=2**30, priority="normal")
"""
DRAW = """
with leases.guard(found):
    held = tickets.draw(found, Request(), within=None)
"""
TELL_AND_STAY = """
print(held.id, flush=True)
sys.stdin.read()
"""
TRY_TO_BREAK = """
done = []
for name in found.names("lease-") + found.names("ticket-"):
    path = os.path.join(found.path, name)
    if os.stat(path).st_uid == os.getuid():
        continue
    for what, act in {
        "unlink": lambda: os.unlink(path),
        "rename": lambda: os.rename(path, path + "x"),
        "replace": lambda: os.rename(found.path + "/mine", path),
        "write": lambda: open(path, "r+b"),
        "date": lambda: os.utime(path, (1, 1)),
        "chmod": lambda: os.chmod(path, 0o666),
        "unlock": lambda: fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB),
    }.items():
        open(found.path + "/mine", "w").close()
        try:
            act()
            done.append(f"{what} {name}")
        except OSError:
            pass
with leases.guard(found):
    leases.sweep(found)
print(json.dumps({"done": done, "seen": [r.uid for r in leases.live(found)]}), flush=True)
"""


@pytest.fixture(autouse=True)
def on_the_host(host: LeaseDirectory) -> None:
    """Every test here is of several accounts."""


def test_accounts_with_a_closed_umask_see_each_others_claims_and_cannot_end_them(
    host: LeaseDirectory, script: Script
) -> None:
    assert PROTECTED.exists()  # whatever this kernel's setting is, the files are opened so that it holds
    script(AS.format(uid=ADA) + TAKE + TELL_AND_STAY)
    script(AS.format(uid=ADA) + DRAW + TELL_AND_STAY)
    other = script(AS.format(uid=BOB) + TAKE + TRY_TO_BREAK, ready=False)
    told = json.loads(other.communicate(timeout=30)[0])
    assert told == {"done": [], "seen": [ADA, BOB]}
    assert [record.uid for record in leases.live(host)] == [ADA]
    assert [record.uid for record in tickets.live_tickets(host)] == [ADA]


def test_nobody_can_pose_as_another_account(host: LeaseDirectory, script: Script) -> None:
    lie = f"""
record = held.record()
text = json.loads(os.pread(held.fd, 4096, 0))
os.pwrite(held.fd, json.dumps({{**text, "uid": {ADA}, "user": "ada"}}).encode().ljust(4096), 0)
"""
    script(AS.format(uid=BOB) + TAKE + lie + TELL_AND_STAY)
    script(AS.format(uid=BOB) + DRAW + lie + TELL_AND_STAY)
    assert [record.uid for record in leases.live(host)] == [BOB]
    assert [record.uid for record in tickets.live_tickets(host)] == [BOB]


def test_priority_high_is_believed_only_of_those_who_may(host: LeaseDirectory, script: Script) -> None:
    script(AS.format(uid=ADA) + DRAW + TELL_AND_STAY)
    high = "held.rewrite(held.record()._replace(priority='high'))\n"
    script(AS.format(uid=BOB) + DRAW + high + TELL_AND_STAY)
    settings = config.load()
    assert [record.uid for record in tickets.waiting(host, settings)] == [BOB, ADA]
    bounded = settings._replace(who_may_raise_priority="nobody-at-all")
    assert [record.uid for record in tickets.waiting(host, bounded)] == [ADA, BOB]


def test_a_flood_of_one_accounts_tickets_hides_nobody_and_counts_to_a_bound(
    host: LeaseDirectory, script: Script
) -> None:
    flood = f"""
kept = []
for number in range({MAX_FILES_PER_OWNER + 40}):
    record = leases.LeaseRecord(os.urandom(4).hex(), (), pid=os.getpid(), since=1.0, number=1)
    kept.append(claims.write_claim(found, "ticket", record))
print(len(kept), flush=True)
sys.stdin.read()
"""
    script(AS.format(uid=BOB) + flood)
    script(AS.format(uid=ADA) + TAKE + TELL_AND_STAY)
    script(AS.format(uid=ADA) + DRAW + TELL_AND_STAY)
    standing = [record.uid for record in tickets.live_tickets(host)]
    assert standing.count(BOB) == tickets.MAX_TICKETS_PER_OWNER
    assert standing.count(ADA) == 1
    assert [record.uid for record in leases.live(host)] == [ADA]


def test_a_file_in_the_place_of_anothers_lease_to_be_does_not_stop_it(
    host: LeaseDirectory, script: Script
) -> None:
    become = f"""
print(held.id, flush=True)
sys.stdin.readline()
with leases.guard(found):
    lease = held.become_lease(({GPU!r},))
print(lease.id, flush=True)
sys.stdin.read()
"""
    waiter = script(AS.format(uid=ADA) + DRAW + "sys.stdout.write(' ')\n" + become)
    (ticket,) = tickets.live_tickets(host)
    squat = f"open(found.path + '/lease-{ticket.id}', 'w').close(); print(1, flush=True); sys.stdin.read()"
    script(AS.format(uid=BOB) + squat)
    assert [record.uid for record in tickets.live_tickets(host)] == [ADA]
    assert waiter.stdin is not None
    assert waiter.stdout is not None
    waiter.stdin.write("\n")
    waiter.stdin.flush()
    granted = waiter.stdout.readline().strip()
    (lease,) = leases.live(host)
    assert (lease.uid, lease.id) == (ADA, granted)
    assert granted != ticket.id


def test_dead_claims_of_any_account_are_swept_by_its_next_call_or_by_roots(
    host: LeaseDirectory, script: Script
) -> None:
    for code in (TAKE, DRAW):
        process = script(AS.format(uid=ADA) + code + TELL_AND_STAY)
        process.kill()
        process.wait()
    assert leases.live(host) == tickets.live_tickets(host) == ()
    script(AS.format(uid=BOB) + TAKE + TELL_AND_STAY)  # sweeps only its own
    assert len(host.names("lease-")) + len(host.names("ticket-")) == 3
    with leases.guard(host):
        leases.sweep(host)
    assert len(host.names("lease-")) == 1
    assert host.names("ticket-") == []


@pytest.mark.parametrize("names", [None, "full", "initials", "none"])
def test_what_others_are_called_is_as_the_administrator_says(
    host: LeaseDirectory, script: Script, names: str | None
) -> None:
    note = f"held.annotate(kernel_id='k', notebook='/home/x/secret.ipynb', readable={names == 'full'})\n"
    script(AS.format(uid=0) + TAKE + note + TELL_AND_STAY)
    look = f"""
settings = config.load()._replace(names={names!r})
record = leases.live_leases(settings)[0]
entry = status.lease_entry(record, settings)
print(json.dumps([entry["user"], entry["uid"], entry["notebook"], record.who]), flush=True)
"""
    told = json.loads(script(AS.format(uid=BOB) + look, ready=False).communicate(timeout=30)[0])
    assert (
        told
        == {
            None: ["root", 0, None, "root"],
            "full": ["root", 0, "/home/x/secret.ipynb", "root"],
            "initials": ["r.", 0, None, "r."],
            "none": [None, 0, None, "another account"],
        }[names]
    )


def test_a_request_of_another_account_waits_behind_ours(host: LeaseDirectory, script: Script) -> None:
    with leases.guard(host):
        mine = tickets.draw(host, Request(), within=None)
    script(AS.format(uid=ADA) + DRAW + TELL_AND_STAY)
    assert [record.uid for record in tickets.waiting(host, config.load())] == [os.getuid(), ADA]
    mine.give_up()
    assert [record.uid for record in tickets.waiting(host, config.load())] == [ADA]
