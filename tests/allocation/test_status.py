"""What programs read of leases and of those who wait."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gpulab import config
from gpulab.allocation.naming import named, shown_login
from gpulab.allocation.records import LeaseRecord
from gpulab.allocation.status import holding_state, lease_entry, waiting_entry
from gpulab.config import Settings

NOW = time.time()
HOUR = 3600.0


@pytest.mark.parametrize(
    ("age", "rest", "rules", "state"),
    [
        (2 * HOUR, None, {}, "active"),
        (2 * HOUR, HOUR, {}, "active"),
        (2 * HOUR, HOUR, {"idle_after": 600.0}, "idle"),
        (2 * HOUR, HOUR, {"idle_after": 2 * HOUR}, "active"),
        (2 * HOUR, HOUR, {"idle_after": 600.0, "on_idle": "notice"}, "idle"),
        (2 * HOUR, HOUR, {"idle_after": 600.0, "on_idle": "stop"}, "reclaimable"),
        (2 * HOUR, 60.0, {"max_lease_age": HOUR}, "reclaimable"),
        (2 * HOUR, None, {"max_lease_age": HOUR}, "active"),
        (2 * HOUR, None, {"idle_after": 600.0, "on_idle": "stop"}, "active"),
    ],
)
def test_a_holders_state_follows_its_rest_and_the_rules(
    age: float, rest: float | None, rules: dict[str, object], state: str
) -> None:
    idle_since = None if rest is None else NOW - rest
    lease = LeaseRecord("0badbad0", ("GPU-1",), since=NOW - age, idle_since=idle_since)
    assert holding_state(lease, config.load()._replace(**rules)) == state


def test_one_who_waits_is_described_with_its_place() -> None:
    ticket = LeaseRecord(
        "0badbad0", (), "shared", 2**30, uid=7, user="ada", pid=9, since=0.0, number=4, count=1
    )
    assert waiting_entry(ticket, 3) == {
        "id": "0badbad0",
        "position": 3,
        "gpus": 1,
        "memory_bytes": 2**30,
        "mode": "shared",
        "priority": "normal",
        "user": "ada",
        "uid": 7,
        "pid": 9,
        "since": "1970-01-01T00:00:00.000Z",
        "answers": True,
    }


def test_ones_own_name_and_notebook_are_always_told(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = LeaseRecord("0badbad0", ("GPU-1",), uid=os.getuid(), user="me", notebook="a.ipynb")
    for names in (None, "full", "initials", "none"):
        assert named(mine, names) == mine


@pytest.mark.parametrize(
    ("login", "shown"),
    [("ada.lovelace", "a.l."), ("ada_b-c", "a.b.c."), ("ada", "a."), ("…", "another account")],
)
def test_initials_are_of_each_part_of_a_login(
    login: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # root is told all
    assert shown_login(login, "initials") == shown


def test_an_account_without_a_name_is_shown_by_its_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 54322)
    stranger = LeaseRecord("0badbad0", ("GPU-1",), uid=54321, notebook="secret.ipynb", kernel_id="k")
    assert named(stranger, None).who == "uid 54321"
    assert named(stranger, None).notebook is None
    assert named(stranger, "full").notebook == "secret.ipynb"
    hidden_record = named(stranger, "none")
    monkeypatch.undo()
    hidden = lease_entry(hidden_record, Settings(lease_dir=str(tmp_path)))
    assert (hidden["user"], hidden["notebook"], hidden["kernel_id"]) == (None,) * 3
    assert hidden["uid"] == 54321
