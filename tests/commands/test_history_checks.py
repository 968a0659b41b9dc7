from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from gpulab import config
from gpulab.commands.history_checks import check_history
from gpulab.config import Settings
from gpulab.hardware.devices import Device, DriverState, Memory, Snapshot
from gpulab.telemetry import series
from gpulab.telemetry.store import Store
from gpulab.units import format_duration


@pytest.fixture
def settings(own_machine: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("GPULAB_SIMULATE", "1xt4")
    settings = config.load()
    Path(settings.machine_dir).mkdir(parents=True)
    return settings


def states(settings: Settings) -> list[tuple[str, str]]:
    return [(finding.state, finding.message) for finding in check_history(settings)]


def test_before_the_first_sample_there_is_none_and_that_is_fine(settings: Settings) -> None:
    ((state, message),) = states(settings)
    assert state == "ok"
    assert message.startswith(f"none yet; it begins in {series.store_path(settings)}")


def test_its_path_its_size_and_how_far_it_goes_back(settings: Settings) -> None:
    store, now = Store(settings), time.time()
    for second in range(90):
        device = Device(0, "GPU-a", memory=Memory(used_bytes=1), gpu_percent=50.0)
        store.append(Snapshot(now - 90 + second, DriverState(), (device,), simulated=True))
    store.close()
    ((state, message),) = states(settings)
    assert state == "ok"
    path, size, reach = message.split(", ")
    assert path == series.store_path(settings)
    assert size.endswith(("KiB", "MiB"))
    assert reach in {"goes back 1 min", "goes back 2 min"}  # a minute that has begun counts as covered


def test_it_goes_back_to_its_first_sample_not_to_the_begin_of_that_samples_hour(settings: Settings) -> None:
    store, begin = Store(settings), (time.time() - 7200) // 3600 * 3600 + 2400
    for second in range(0, 1800, 1):  # into the next hour, so that the first one is rolled up
        device = Device(0, "GPU-a", memory=Memory(used_bytes=1), gpu_percent=50.0)
        store.append(Snapshot(begin + second, DriverState(), (device,), simulated=True))
    store.close()
    before = format_duration(time.time() - begin)
    ((_, message),) = states(settings)
    assert message.endswith((f"goes back {before}", f"goes back {format_duration(time.time() - begin)}"))


def test_a_history_of_a_newer_version_is_a_failure_with_its_sentence(settings: Settings) -> None:
    with sqlite3.connect(series.store_path(settings)) as connection:
        connection.execute("CREATE TABLE later (x)")
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    ((state, message),) = states(settings)
    assert state == "fail"
    assert "newer gpulab" in message


def test_a_broken_file_that_was_kept_is_named(settings: Settings) -> None:
    Path(f"{series.store_path(settings)}.broken").write_text("")
    *_, (state, message) = states(settings)
    assert state == "note"
    assert message.startswith("it was started anew, and the broken file is kept: history.sqlite.broken")
