from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import pytest

from gpulab.config import Settings
from gpulab.hardware.devices import Device, DriverState, Memory, Snapshot
from gpulab.telemetry.store import RAW_SECONDS, SCHEMA_VERSION, Sample, Store, recent, store_path

NOON = 1_800_000_000.0


def snapshot(time: float, *devices: Device) -> Snapshot:
    return Snapshot(time, DriverState(), devices or (Device(0, "GPU-a", "T4"),))


def busy(uuid: str, percent: float | None = 80.0) -> Device:
    return Device(0, uuid, "T4", memory=Memory(used_bytes=5 * 2**30), gpu_percent=percent, power_watts=61.5)


def test_what_was_appended_is_read_back_by_uuid_in_order(settings: Settings) -> None:
    store = Store(settings)
    for second in range(3):
        assert store.append(snapshot(NOON + second, busy("GPU-a", second), busy("GPU-b")))
    series = recent(settings, 60, until=NOON + 2)
    assert [sample.gpu_percent for sample in series["GPU-a"]] == [0, 1, 2]
    assert series["GPU-b"][-1] == Sample(NOON + 2, 80.0, 5 * 2**30, 61.5, None)


def test_unknown_figures_stay_unknown(settings: Settings) -> None:
    Store(settings).append(snapshot(NOON, Device(0, "GPU-a")))
    assert recent(settings, 60, until=NOON)["GPU-a"] == [Sample(NOON, None, None, None, None)]


def test_only_the_asked_seconds_are_read(settings: Settings) -> None:
    store = Store(settings)
    for second in range(10):
        store.append(snapshot(NOON + second))
    assert len(recent(settings, 3, until=NOON + 9)["GPU-a"]) == 4


def test_a_reader_sees_samples_while_the_writer_has_the_file_open(settings: Settings) -> None:
    store = Store(settings)
    store.append(snapshot(NOON))
    assert len(recent(settings, 60, until=NOON)["GPU-a"]) == 1
    store.append(snapshot(NOON + 1))
    assert len(recent(settings, 60, until=NOON + 1)["GPU-a"]) == 2


def test_raw_samples_are_kept_for_a_day(settings: Settings) -> None:
    Store(settings).append(snapshot(NOON - RAW_SECONDS - 10))
    Store(settings).append(snapshot(NOON))  # a new writer prunes with its first sample
    assert [sample.time for sample in recent(settings, 3 * RAW_SECONDS, until=NOON)["GPU-a"]] == [NOON]


def test_there_is_no_history_without_a_file_and_none_is_made_by_reading(settings: Settings) -> None:
    assert recent(settings, 60) == {}
    assert not os.path.exists(store_path(settings))


def test_a_file_that_is_no_database_is_set_aside_and_history_begins_anew(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with open(store_path(settings), "wb") as file:
        file.write(b"this is not a database" * 1000)
    assert recent(settings, 60) == {}
    store = Store(settings)
    assert not store.append(snapshot(NOON))
    assert store.append(snapshot(NOON + 1))
    assert len(recent(settings, 60, until=NOON + 1)["GPU-a"]) == 1
    assert os.path.exists(store_path(settings) + ".broken")
    assert [record.message for record in caplog.records] == [
        f"History is started anew, the broken file is {store_path(settings)}.broken: file is not a database"
    ]


def test_a_page_that_breaks_in_use_costs_history_and_nothing_else(settings: Settings) -> None:
    store = Store(settings)
    for second in range(200):
        store.append(snapshot(NOON + second, busy("GPU-a"), busy("GPU-b")))
    store.close()
    with open(store_path(settings), "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8192)
    outcomes = [store.append(snapshot(NOON + 300 + second, busy("GPU-a"))) for second in range(3)]
    assert outcomes == [False, True, True]
    assert len(recent(settings, 60, until=NOON + 302)["GPU-a"]) == 2


def test_a_store_of_a_newer_gpulab_is_left_alone_and_that_is_said_once(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(store_path(settings))) as connection:
        connection.execute("CREATE TABLE future (x)")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    store = Store(settings)
    assert not store.append(snapshot(NOON))
    assert not store.append(snapshot(NOON + 1))
    assert len(caplog.records) == 1
    assert "written by a newer gpulab; update gpulab" in caplog.text
    with closing(sqlite3.connect(store_path(settings))) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("future",)]


def test_a_full_disk_costs_history_is_said_once_and_ends_by_itself(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(settings)
    store.append(snapshot(NOON))
    store._connection.execute("PRAGMA max_page_count = 1")  # SQLite's own way to say: the disk is full
    many = [busy(f"GPU-{number:040}") for number in range(500)]
    assert not store.append(snapshot(NOON + 1, *many))
    assert "History is not written: database or disk is full" in caplog.text
    assert store.append(snapshot(NOON + 2))
    assert [sample.time for sample in recent(settings, 60, until=NOON + 2)["GPU-a"]] == [NOON, NOON + 2]
