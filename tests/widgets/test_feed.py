from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from gpulab.config import Settings
from gpulab.hardware import hosting, record
from gpulab.hardware.devices import DriverState, Snapshot
from gpulab.telemetry import sampler
from gpulab.widgets.feed import Feed

Until = Callable[..., None]


def publish(settings: Settings, moment: float) -> None:
    os.makedirs(settings.machine_dir, exist_ok=True)
    record.publish(Snapshot(moment, DriverState()), settings)


def test_a_record_that_nobody_renews_grows_old(settings: Settings) -> None:
    feed = Feed()
    assert feed.age == math.inf
    publish(settings, time.time() - 100)
    assert feed.read()
    assert 99.9 < feed.age < 101
    assert feed.is_late


def test_a_record_from_the_future_is_not_believed_before_it_is_seen_to_change(settings: Settings) -> None:
    """The clock was set back by an hour: what an earlier sampler left is not of now, what comes next is."""
    publish(settings, time.time() + 3600)
    feed = Feed()
    assert not feed.read()
    assert feed.age == math.inf
    publish(settings, time.time() + 3601)
    assert feed.read()
    assert feed.age < 1


def test_a_clock_that_jumps_makes_no_sample_of_now_old(settings: Settings) -> None:
    publish(settings, time.time())
    feed = Feed()
    assert feed.read()
    publish(settings, time.time() - 7200)  # written just now, with a clock of two hours ago
    assert feed.read()
    assert feed.age < 1


def test_the_same_record_is_read_once(settings: Settings) -> None:
    publish(settings, time.time())
    feed = Feed()
    assert [feed.read() for _ in range(3)] == [True, False, False]


def test_a_broken_record_is_no_snapshot_and_the_next_one_is(settings: Settings) -> None:
    publish(settings, time.time())
    feed = Feed()
    feed.read()
    before = feed.snapshot
    with open(record.record_path(settings), "w") as file:
        file.write('{"time": 1')
    assert not feed.read()
    assert feed.snapshot is before
    publish(settings, time.time())
    assert feed.read()


def test_after_a_killed_sampler_at_most_three_samples_are_missing(settings: Settings, until: Until) -> None:
    feed = Feed()

    def came() -> bool:
        feed.revive()
        return feed.read()

    until(came, "a first sample")
    killed, last = sampler.running_pid(settings), feed.snapshot
    assert killed is not None
    assert last is not None
    os.kill(killed, signal.SIGKILL)
    until(lambda: came() and sampler.running_pid(settings) != killed, "another sampler's sample")
    assert feed.snapshot is not None
    assert feed.snapshot.time - last.time < 4.0
    assert not feed.is_late


def test_a_sampler_that_cannot_start_is_not_tried_without_end(settings: Settings) -> None:
    os.makedirs(os.path.dirname(settings.data_dir), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(settings.data_dir)
    with open(settings.data_dir, "w") as file:  # a file where the directory should be
        file.write("")
    feed = Feed()
    assert sum(feed.revive() for _ in range(200)) == 1
    assert feed.sampling is False


def test_the_hosts_record_is_read_while_a_service_publishes_and_no_sampler_is_started(
    settings: Settings,
) -> None:
    machine = Path(hosting.machine_path(settings))
    machine.mkdir(parents=True, mode=0o755)
    Path(hosting.host_dir(settings)).chmod(0o755)
    os.mkfifo(machine / "wake", 0o622)
    listening = os.open(machine / "wake", os.O_RDONLY | os.O_NONBLOCK)
    publish(settings, time.time() - 30)  # what this account's sampler left
    feed = Feed()
    try:
        now = time.time()
        record.publish(Snapshot(now - 2, DriverState()), settings, host=True)
        assert feed.read()
        assert feed.snapshot is not None
        assert feed.snapshot.time == now - 2
        assert feed.revive()  # late, but the service is there
        assert sampler.running_pid(settings) is None
    finally:
        os.close(listening)


def test_when_a_service_has_ended_an_own_sampler_takes_its_place(settings: Settings, until: Until) -> None:
    machine = Path(hosting.machine_path(settings))
    machine.mkdir(parents=True, mode=0o755)
    Path(hosting.host_dir(settings)).chmod(0o755)
    os.mkfifo(machine / "wake", 0o622)
    record.publish(Snapshot(time.time() - 2, DriverState()), settings, host=True)
    feed = Feed()

    def came_from_the_own_one() -> bool:
        feed.revive()
        feed.read()
        return feed.snapshot is not None and len(feed.snapshot.devices) == 8

    until(came_from_the_own_one, "a sample of the account's own sampler")
    assert sampler.running_pid(settings) is not None
