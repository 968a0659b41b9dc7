"""Whoever is killed, at whatever moment: the record goes on and the history is sound."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gpulab.config import Settings
from gpulab.hardware import record
from gpulab.telemetry import sampler, series

Until = Callable[..., None]
KILLS = 15


def test_killed_at_any_moment_it_is_replaced_and_at_most_three_samples_are_lost(
    settings: Settings, until: Until
) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    last = 0.0
    for _ in range(KILLS):
        late = chance.uniform(0.1, 1.2)  # a reader notices at the latest when a sample has not come
        until(lambda late=late, last=last: _read(settings, late) > last, "a sample after the kill")
        time.sleep(chance.uniform(0, 0.9))
        _kill(settings)
        last = _time(settings)
        text = Path(record.record_path(settings)).read_text()
        assert len(json.loads(text)["devices"]) == 2, f"seed {seed}"  # the old one or the new one, never half
    until(lambda: _read(settings, 0.1) > last, "a sample after the last kill")
    gaps = _gaps(settings)
    assert len(gaps) >= KILLS // 2  # one that was killed right after it published has not written yet
    assert max(gaps) < 4.5, f"seed {seed}"  # three lost ones, and what a busy machine takes to start another
    _check(settings)


def test_killed_while_it_starts_it_is_replaced_as_well(settings: Settings, until: Until) -> None:
    for number in range(6):
        sampler.ensure(settings)
        time.sleep(number * 0.05)
        _kill(settings)
    until(lambda: _read(settings, 0.1) > 0, "a sample")
    until(lambda: _read(settings, 2.0) > 0 and len(_gaps(settings)) >= 1, "two in the history")
    _check(settings)


def _read(settings: Settings, late: float) -> float:
    """As a monitor does: it looks at the record, and sees to a sampler when it is late."""
    found = _time(settings)
    if time.time() - found > late:
        sampler.ensure(settings)
    return found


def _time(settings: Settings) -> float:
    found = record.latest(settings)
    return 0.0 if found is None else found.time


def _kill(settings: Settings) -> None:
    pid = sampler.running_pid(settings)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _gaps(settings: Settings) -> list[float]:
    found = next(iter(series.recent(settings, 600).values()), [])
    return [after.time - before.time for before, after in itertools.pairwise(found)]


def _check(settings: Settings) -> None:
    """That nothing is broken, and nothing left behind."""
    with contextlib.closing(sqlite3.connect(series.store_path(settings))) as history:
        assert history.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    names = os.listdir(settings.machine_dir)
    assert [name for name in names if name.startswith("latest.json")] == ["latest.json"]
    assert not os.path.exists(f"{series.store_path(settings)}.broken")


def test_a_killed_sampler_is_replaced_at_the_next_call(settings: Settings, until: Until) -> None:
    sampler.ensure(settings)
    until(lambda: record.latest(settings, max_age=3), "a record")
    killed = sampler.running_pid(settings)
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    until(
        lambda: sampler.ensure(settings) and sampler.running_pid(settings) not in (None, killed),
        "another one",
    )
    stopped_at = record.latest(settings)
    until(lambda: record.latest(settings) != stopped_at, "its record")


def test_the_end_of_whoever_started_it_does_not_end_it(settings: Settings, until: Until) -> None:
    code = (
        "import os, signal; from gpulab import config; from gpulab.telemetry import sampler; "
        "sampler.ensure(config.load()); os.killpg(0, signal.SIGKILL)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    assert starter.wait(timeout=30) == -signal.SIGKILL
    until(lambda: record.latest(settings), "a record from the orphan")
    first = _time(settings)
    until(lambda: _time(settings) > first, "another one")


def test_it_inherits_nothing_but_the_lock(settings: Settings, until: Until, tmp_path: Path) -> None:
    with open(tmp_path / "inheritable", "wb") as other:
        os.set_inheritable(other.fileno(), True)
        assert sampler.ensure(settings)
    until(lambda: record.latest(settings), "a record")
    pid = sampler.running_pid(settings)
    assert pid is not None
    opened = {Path(f"/proc/{pid}/fd/{fd}").resolve().name for fd in os.listdir(f"/proc/{pid}/fd")}
    assert "sampler.lock" in opened
    assert "inheritable" not in opened
    assert os.getsid(pid) == pid
