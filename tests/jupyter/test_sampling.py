"""While a kernel holds a lease, its account's sampler goes on, also when nobody looks."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gpulab
from gpulab import config
from gpulab.config import Settings
from gpulab.hardware import record
from gpulab.jupyter.pulse import Pulse
from gpulab.jupyter.sampling import Sampling
from gpulab.telemetry import sampler


@pytest.fixture
def settings(own_machine: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("GPULAB_SIMULATE", "2xt4")
    settings = config.load()
    yield settings
    pid = sampler.running_pid(settings)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


def test_a_kernel_with_a_lease_starts_the_sampler_and_another_one_when_that_is_killed(place, start):
    settings = config.load()
    with place.talk(start()):
        first = place.until(lambda: sampler.running_pid(settings), "a sampler, though nobody looks")
        before = place.until(lambda: record.latest(settings), "its record")
        os.kill(first, signal.SIGKILL)
        others = (None, first)
        second = place.until(
            lambda: (pid := sampler.running_pid(settings)) not in others and pid, "another sampler"
        )
        after = place.until(
            lambda: (now := record.latest(settings)) and now.time > before.time and now, "samples"
        )
    assert after.time - before.time < 5.0
    with contextlib.suppress(ProcessLookupError):
        os.kill(second, signal.SIGKILL)


def test_without_a_lease_it_starts_nothing(settings: Settings) -> None:
    Sampling()()
    assert sampler.running_pid(settings) is None


def test_with_a_lease_it_starts_one_and_leaves_one_that_lives_alone(
    settings: Settings, until: Callable[..., None]
) -> None:
    duty = Sampling()
    with gpulab.acquire():
        duty()
        until(lambda: record.latest(settings) is not None, "a record")
        pid = sampler.running_pid(settings)
        duty()
        assert sampler.running_pid(settings) == pid


def test_a_sampler_that_cannot_stay_is_tried_ever_more_seldom(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with gpulab.acquire():
        monkeypatch.setenv("GPULAB_DATA_DIR", str(tmp_path / "file" / "below"))
        duty = Sampling()
        for _ in range(100):
            duty()
        assert duty._pause == 4.0  # one try, and the next one later than the next turn


def test_a_pulse_is_a_file_that_is_there_and_another_than_before(tmp_path: Path) -> None:
    pulse, path = Pulse(), tmp_path / "latest.json"
    assert not pulse.changed([str(path)])
    path.write_text("1")
    assert [pulse.changed([str(path)]) for _ in range(2)] == [True, False]
    (tmp_path / "next").write_text("2")
    os.replace(tmp_path / "next", path)
    assert pulse.changed([str(path)])
    path.unlink()
    assert not pulse.changed([str(path)])
