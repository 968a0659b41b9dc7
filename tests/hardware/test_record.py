"""The sampler's newest snapshot as a file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gpulab import config
from gpulab.config import Settings
from gpulab.hardware.devices import Device, DriverState, Snapshot
from gpulab.hardware.record import latest, publish, record_path


@pytest.fixture
def settings() -> Settings:
    found = config.load()
    os.makedirs(found.machine_dir)
    return found


def snapshot(seconds_old: float = 0.0) -> Snapshot:
    return Snapshot(time.time() - seconds_old, DriverState(), (Device(0, "GPU-a", "H100"),))


def test_the_newest_snapshot_is_read_back_with_its_source(settings: Settings) -> None:
    publish(snapshot(5), settings)
    published = snapshot()
    publish(published, settings)
    assert latest(settings) == published._replace(source="sampler")


def test_without_a_record_there_is_none(settings: Settings) -> None:
    assert latest(settings) is None


def test_a_record_is_as_old_as_its_snapshot(settings: Settings) -> None:
    publish(snapshot(10), settings)
    assert latest(settings, max_age=2) is None
    assert latest(settings, max_age=60) is not None
    assert latest(settings) is not None


def test_a_record_from_the_future_is_not_fresh(settings: Settings) -> None:
    """A clock that was set back must not freeze the picture."""
    publish(snapshot(-3600), settings)
    assert latest(settings, max_age=2) is None


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"time": "x"}', "null"])
def test_a_record_that_cannot_be_read_is_none(settings: Settings, content: str) -> None:
    Path(record_path(settings)).write_text(content)
    assert latest(settings) is None


def test_nothing_but_the_record_is_left_in_the_directory(settings: Settings) -> None:
    publish(snapshot(), settings)
    assert os.listdir(settings.machine_dir) == ["latest.json"]


def test_a_directory_that_is_gone_is_told_to_the_writer(settings: Settings) -> None:
    os.rmdir(settings.machine_dir)
    with pytest.raises(OSError, match="latest"):
        publish(snapshot(), settings)
