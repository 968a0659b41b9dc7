"""The sampler's newest snapshot as a file."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulab import config
from gpulab.config import Settings
from gpulab.hardware.devices import Device, DriverState, Process, Snapshot
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


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"time": "x"}', "null", "3", "[" * 100_000, "\xff"]
)
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


def test_half_of_one_record_and_half_of_the_next_is_none(settings: Settings) -> None:
    publish(snapshot()._replace(time=1000.25), settings)
    path = Path(record_path(settings))
    older = path.read_bytes()
    publish(snapshot()._replace(time=1001.25), settings)
    newer = path.read_bytes()
    assert len(older) == len(newer)
    for place in (30, len(older) // 2, len(older) - 15):
        path.write_bytes(newer[:place] + older[place:])
        assert latest(settings) is None
        path.write_bytes(older[:place] + newer[place:])
        assert latest(settings) is None


@pytest.fixture
def full_disk(settings: Settings) -> Iterator[Path]:
    """The record's directory on a disk of its own that has no room left."""
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", settings.machine_dir]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    publish(snapshot(60), settings)
    with (
        contextlib.suppress(OSError),
        open(Path(settings.machine_dir, "filler"), "wb", buffering=0) as filler,
    ):
        while filler.write(bytes(512)):
            pass
    yield Path(settings.machine_dir)
    subprocess.run(["umount", settings.machine_dir], check=True)


def test_a_full_disk_costs_no_record(settings: Settings, full_disk: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        Path(full_disk, "other").write_bytes(bytes(4096))
    for age in (40, 3, 20):
        published = snapshot(age)
        publish(published, settings)
        assert latest(settings) == published._replace(source="sampler")
    long = snapshot()._replace(driver=DriverState("error", message="x" * 10_000))
    with pytest.raises(OSError, match="No space left"):
        publish(long, settings)
    assert latest(settings) is None  # less is there than a record: that is not taken for one
    assert sorted(os.listdir(full_disk)) == ["filler", "latest.json", "other"]


def test_what_a_later_version_tells_beside_is_passed_over(settings: Settings) -> None:
    device = Device(0, "GPU-a", "H100", processes=(Process(7, memory_bytes=3),))
    publish(snapshot()._replace(devices=(device,)), settings)
    path = Path(record_path(settings))
    found = json.loads(path.read_text())
    for place in (found, found["nvml"], *found["devices"], *found["devices"][0]["processes"]):
        place["tomorrow"] = {"x": 1}
    found["devices"][0]["memory"]["tomorrow"] = 1
    path.write_text(json.dumps(found))
    read = latest(settings)
    assert read is not None
    assert read.devices == (device,)
