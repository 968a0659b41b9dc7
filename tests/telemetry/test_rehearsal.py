from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpulab import config
from gpulab.hardware.simulation import clock
from gpulab.telemetry import rehearsal, series

EVENING = 1_800_043_200.0
HOUR = 3600
ALICE, BOB = 0, 54322
"""One with a login, one without."""
UTILIZATION = [[0, 0], [1 * HOUR, 80], [5 * HOUR, 0]]
POWER = [[0, 60], [1 * HOUR, 300], [5 * HOUR, 60]]


@pytest.fixture
def night(own_machine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten hours: Alice holds the first GPU for eight and works in four of them; Bob works without a break."""
    scenario = own_machine / "night.json"
    first = {
        "profile": "a100",
        "timeline": {"utilization": {"steps": UTILIZATION}, "power": {"steps": POWER}},
    }
    second = {"profile": "a100", "timeline": {"utilization": 50, "power": 200}}
    leases = [
        {"gpu": 0, "uid": ALICE, "from": HOUR, "until": 9 * HOUR, "notebook": "night.ipynb"},
        {"gpu": 1, "uid": BOB, "from": 0, "until": 11 * HOUR, "memory": "20GiB"},
    ]
    scenario.write_text(json.dumps({"epoch": EVENING, "devices": [first, second], "leases": leases}))
    monkeypatch.setenv("GPULAB_SIMULATE", str(scenario))
    return scenario


def energy(steps: list[list[float]], begin: float, end: float) -> float:
    """Watt by watt, from the scenario's steps."""
    edges = [*steps, [float("inf"), 0.0]]
    return sum(
        watts * max(0.0, min(end, edges[place + 1][0]) - max(begin, start))
        for place, (start, watts) in enumerate(steps)
    )


def test_a_night_is_read_back_with_its_hours_and_joules(
    night: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = "2027-01-15T20:00"
    assert rehearsal.main([str(night), "--start", started, "--hours", "10", "--every", "30"]) == 0
    told = capsys.readouterr().out
    assert "1201 simulated samples are in" in told
    assert "gpulab history --since 2027-01-15T20:00:00Z --until 2027-01-16T06:00:00Z" in told
    settings = config.load()
    end = EVENING + 10 * HOUR
    alice, bob, *nobody = series.usage(settings, EVENING, end)
    assert sum(entry.used_seconds or 0 for entry in nobody) <= 30  # the sample that is Alice's first instant
    assert (alice.uid, alice.user, bob.uid, bob.user) == (ALICE, "root", BOB, None)
    assert alice.held_seconds == pytest.approx(8 * HOUR, abs=30)
    assert alice.used_seconds == pytest.approx(4 * HOUR * 0.8, abs=30)
    assert alice.idle_seconds == pytest.approx(4 * HOUR, abs=60)
    assert alice.energy_joules == pytest.approx(energy(POWER, HOUR, 9 * HOUR), rel=2e-3)
    assert bob.held_seconds == pytest.approx(10 * HOUR, abs=30)
    assert bob.used_seconds == pytest.approx(5 * HOUR, rel=1e-3)
    assert bob.idle_seconds == 0
    assert bob.energy_joules == pytest.approx(10 * HOUR * 200, rel=1e-3)
    whole = [
        rollup for rollup in series.rollups(settings, EVENING, end, level="hour") if rollup.uuid == alice.uuid
    ]
    assert sum(rollup.energy_joules or 0 for rollup in whole) == pytest.approx(
        energy(POWER, 0, len(whole) * HOUR), rel=2e-3
    )
    assert [span.notebook for span in series.leases(settings, EVENING, end)] == [None, "night.ipynb"]
    assert abs(clock.now() - EVENING) > HOUR  # the clock goes with the wall's again


def test_a_time_that_cannot_be_read_is_named(night: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rehearsal.main([str(night), "--start", "yesterday", "--hours", "1"]) == 64
    assert capsys.readouterr().err == "--start is 'yesterday'; write for example 2026-03-01T20:00.\n"


def test_the_same_night_is_not_written_twice(night: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(night), "--start", "2027-01-15T20:00", "--hours", "0.1"]
    assert rehearsal.main(words) == 0
    assert rehearsal.main(words) == 64
    assert "Nothing was written; remove" in capsys.readouterr().err


def test_a_scenario_without_an_epoch_would_be_an_empty_night_and_is_refused(
    night: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = json.loads(night.read_text())
    del scenario["epoch"]
    night.write_text(json.dumps(scenario))
    assert rehearsal.main([str(night), "--start", "2027-01-15T20:00", "--hours", "1"]) == 64
    assert f'"epoch": {EVENING:.0f}' in capsys.readouterr().err
