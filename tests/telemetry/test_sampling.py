"""The loop itself, in this process: clocks that jump, pauses, drivers that hang, GPUs that are lost."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulab import config
from gpulab.config import Settings
from gpulab.hardware import nvml, pausing, record
from gpulab.hardware.devices import DriverState, Snapshot
from gpulab.telemetry import series
from gpulab.telemetry.sampler import HostSampler, look, watch

Until = Callable[..., None]
TWO = {"devices": [{"profile": "t4", "count": 2}]}


class Machine:
    """A simulated machine whose file changes while it is sampled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path.with_suffix(".calls")

    def becomes(self, *faults: dict[str, Any], **more: Any) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({**TWO, "faults": faults, **more}))
        os.replace(new, self.path)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path / "machine.json")
    found.becomes()
    monkeypatch.setenv("GPULAB_SIMULATE", str(found.path))
    return found


@pytest.fixture
def sampled(machine: Machine) -> Iterator[Settings]:
    """A machine that is sampled by a thread of this process."""
    with HostSampler(config.load()) as sampler:
        thread = threading.Thread(target=sampler.run)
        thread.start()
        yield sampler.settings
        machine.becomes()
        sampler.stop.set()
        thread.join(30)
        assert not thread.is_alive()
    nvml.shutdown()


def newest(settings: Settings) -> Snapshot:
    return record.latest(settings) or Snapshot(0.0, DriverState("error", message="there is no record"))


def states(settings: Settings) -> list[str]:
    return [device.state for device in newest(settings).devices]


def next_one(settings: Settings, until: Until) -> Snapshot:
    """The next sample after the newest one."""
    before = newest(settings).time
    until(lambda: newest(settings).time not in (before, 0.0), "a sample")
    return newest(settings)


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_clock_that_is_set_leaves_readers_without_a_record_for_one_sample_only(
    sampled: Settings, until: Until, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    until(lambda: states(sampled) == ["ok", "ok"], "the first sample")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    until(lambda: _age_of_own(sampled) < 2, "a sample of the new time")
    first, second = next_one(sampled, until), next_one(sampled, until)
    assert 0.5 < second.time - first.time < 3
    for device in second.devices:
        assert abs((device.detailed_at or second.time) - second.time) < 15
        assert device.energy_joules is None or device.energy_joules >= 0


def _age_of_own(settings: Settings) -> float:
    """By the file itself: its date is the kernel's, which no test can set."""
    found = json.loads(Path(record.paths(settings)[0]).read_text())
    return abs(time.time() - float(found["time"]))


def test_a_pause_is_published_each_second_and_ends(sampled: Settings, until: Until) -> None:
    until(lambda: states(sampled) == ["ok", "ok"], "the first sample")
    pausing.pause(sampled)
    until(lambda: newest(sampled).driver.state == "paused", "the pause")
    assert "resume" in next_one(sampled, until).driver.message
    assert newest(sampled).devices == ()
    pausing.resume(sampled)
    until(lambda: states(sampled) == ["ok", "ok"], "the end of the pause")


def test_a_gpu_that_hangs_is_named_the_others_go_on_and_it_recovers(
    sampled: Settings, machine: Machine, until: Until
) -> None:
    until(lambda: states(sampled) == ["ok", "ok"], "the first sample")
    machine.becomes({"call": "nvmlDevice*", "gpu": 1, "hang": True})
    until(lambda: states(sampled) == ["ok", "unresponsive"], "the silence of one", timeout=5)
    times = [next_one(sampled, until).time for _ in range(4)]
    assert max(after - before for before, after in itertools.pairwise(times)) < 2
    assert states(sampled) == ["ok", "unresponsive"]
    machine.becomes()
    until(lambda: states(sampled) == ["ok", "ok"], "its recovery")


def test_a_driver_that_hangs_shows_within_seconds_and_recovers(
    sampled: Settings, machine: Machine, until: Until
) -> None:
    until(lambda: states(sampled) == ["ok", "ok"], "the first sample")
    machine.becomes({"call": "*", "hang": True})
    until(
        lambda: newest(sampled).driver.state == "unresponsive" or set(states(sampled)) == {"unresponsive"},
        "its silence",
        timeout=5,
    )
    next_one(sampled, until)
    machine.becomes()
    until(lambda: states(sampled) == ["ok", "ok"], "its recovery")


def test_a_gpu_that_falls_off_the_bus_is_lost_and_the_other_is_still_kept(
    sampled: Settings, machine: Machine, until: Until
) -> None:
    until(lambda: states(sampled) == ["ok", "ok"], "the first sample")
    first, second = (device.uuid or "" for device in newest(sampled).devices)
    machine.becomes({"call": "nvmlDevice*", "gpu": 1, "code": 15})
    until(lambda: states(sampled) == ["ok", "lost"], "the loss")
    count = len(series.recent(sampled, 60)[first])
    until(lambda: len(series.recent(sampled, 60)[first]) >= count + 2, "two more samples")
    assert series.recent(sampled, 60)[second][-1].gpu_percent is None


def test_who_asks_has_a_sample_before_the_next_second(sampled: Settings, until: Until) -> None:
    gaps = []
    for _ in range(4):
        before = next_one(sampled, until).time
        look(sampled)
        gaps.append(next_one(sampled, until).time - before)
    assert min(gaps) < 0.7


def test_a_watch_has_links_read_and_ends_with_its_owner(
    machine: Machine, sampled: Settings, until: Until
) -> None:
    until(lambda: states(sampled) == ["ok", "ok"], "the first sample")
    assert newest(sampled).devices[0].pcie_rx_bytes_per_second is None
    with watch(sampled, links=True):
        until(lambda: newest(sampled).devices[0].pcie_rx_bytes_per_second is not None, "links")
        times = [next_one(sampled, until).time for _ in range(6)]
        assert min(after - before for before, after in itertools.pairwise(times)) < 0.5
    until(lambda: next_one(sampled, until).devices[0].pcie_rx_bytes_per_second is None, "no links any more")
