"""`gpulab.history` and what it is summed up to: rows, resolutions, gaps, and ranges as people write them."""

from __future__ import annotations

import itertools
import math
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

import gpulab
from gpulab.config import Settings
from gpulab.errors import MissingDependencyError, RequestError
from gpulab.hardware import record
from gpulab.hardware.devices import Device, DriverState, Memory, Snapshot
from gpulab.telemetry.history import frame
from gpulab.telemetry.reading import summary
from gpulab.telemetry.reading.ranges import span
from gpulab.telemetry.reading.resolutions import Row, rows
from gpulab.telemetry.series import store_path
from gpulab.telemetry.store import Store

NOW = (time.time() // 3600 - 1) * 3600 + 30
"""In the middle of a minute, so that the newest one is never rolled up."""
HOUR, DAY = 3600, 86400
Keep = Callable[..., None]


def devices(turn: int) -> tuple[Device, ...]:
    """One whose every figure moves, with a counter of 100 W; one that tells nothing."""
    told = Device(
        0,
        "GPU-a",
        "NVIDIA T4 (simulated)",
        memory=Memory(total_bytes=16 * 2**30, used_bytes=(turn % 10) * 2**30),
        gpu_percent=float(turn % 10) * 10,
        power_watts=100.0,
        temperature_celsius=40.0,
        energy_joules=100.0 * turn * 60,
        sm_clock_mhz=1590.0,
        throttle_reasons=("sw_power_cap", "hw_slowdown") if turn == 1 else (),
    )
    return told, Device(1, "GPU-b", "T4")


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def before(seconds: float) -> datetime:
    return at(NOW - seconds)


@pytest.fixture
def keep(settings: Settings) -> Keep:
    """Writes a history with a sample each minute, of the minutes that are given, counted back from NOW."""

    def write(*turns: range) -> None:
        now = [0.0]
        store = Store(settings, period=60, clock=lambda: now[0])
        minutes = [*itertools.chain(*turns)]
        for minute in minutes:
            now[0] = NOW - 60 * minute
            assert store.append(Snapshot(now[0], DriverState(), devices(minutes[0] - minute)))
        store.close()

    return write


def test_there_is_one_row_for_each_device_and_sample_with_its_time_in_utc(keep: Keep) -> None:
    keep(range(10, -1, -1))
    table = gpulab.history(since=before(600), until=at(NOW))
    assert list(table.columns) == list(Row._fields)
    assert len(table) == 22
    assert str(table["time"].dt.tz) == "UTC"
    assert table["time"].is_monotonic_increasing
    assert table["time"].iloc[0] == pd.Timestamp(NOW - 600, unit="s", tz="UTC")
    first = table[table["uuid"] == "GPU-a"]
    assert first["gpu_percent"].tolist() == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 0]
    assert first["memory_used_bytes"].max() == 9 * 2**30
    assert first["throttle_reasons"].tolist()[:3] == ["", "sw_power_cap hw_slowdown", ""]
    assert set(first["resolution"]) == {"raw"}
    assert first["seconds"].tolist()[1:] == [60.0] * 10
    assert first["energy_joules"].sum() == pytest.approx(100 * 600)
    unknown = table[table["uuid"] == "GPU-b"]
    assert unknown["gpu_percent"].isna().all()
    assert unknown["energy_joules"].isna().all()
    assert table.attrs["trouble"] is None
    assert table.attrs["simulated"] is True
    only = gpulab.history(since=before(600), until=at(NOW), uuids=["GPU-a"])
    assert set(only["uuid"]) == {"GPU-a"}


def test_the_number_of_a_device_is_the_newest_snapshots(keep: Keep, settings: Settings) -> None:
    keep(range(2, -1, -1))
    assert gpulab.history("3h")["index"].isna().all()
    record.publish(Snapshot(time.time(), DriverState(), (Device(5, "GPU-a", "T4"),)), settings)
    table = gpulab.history("3h")
    assert table[table["uuid"] == "GPU-a"]["index"].tolist() == [5, 5, 5]


def test_a_gap_has_no_rows_and_no_seconds(keep: Keep) -> None:
    keep(range(60, 50, -1), range(10, -1, -1))
    table = gpulab.history(since=before(HOUR), until=at(NOW), uuids=["GPU-a"])
    assert len(table) == 21
    assert math.isnan(table["seconds"].iloc[10])  # the first after the gap stands for no time
    assert table["seconds"].sum() == 19 * 60
    assert math.isnan(table["energy_joules"].iloc[10])


def test_without_a_history_the_frame_is_empty_but_whole_and_says_why(settings: Settings, keep: Keep) -> None:
    empty = gpulab.history()
    assert len(empty) == 0
    assert "There is no history yet" in empty.attrs["trouble"]
    keep(range(2, -1, -1))
    assert gpulab.history(since=before(60)).dtypes.to_dict() == empty.dtypes.to_dict()
    assert empty["gpu_percent"].mean() is not None  # figures, not objects
    with closing(sqlite3.connect(store_path(settings))) as connection:
        connection.execute("PRAGMA user_version = 99")
    future = gpulab.history()
    assert len(future) == 0
    assert "newer gpulab" in future.attrs["trouble"]


def test_long_ranges_come_in_minutes_and_what_is_not_kept_any_more_in_what_is_left(keep: Keep) -> None:
    keep(range(30 * 60, -1, -1))  # thirty hours
    whole = gpulab.history(since=before(30 * HOUR), until=at(NOW), uuids=["GPU-a"])
    assert set(whole["resolution"]) == {"minute", "raw"}  # the newest minute is not rolled up
    assert not whole["time"].duplicated().any()
    assert whole["seconds"].sum() == pytest.approx(30 * HOUR, rel=1e-3)
    assert whole["energy_joules"].sum() == pytest.approx(100 * 30 * HOUR, rel=1e-3)
    assert whole["gpu_max_percent"].max() == 90
    early = gpulab.history(since=before(29 * HOUR), until=before(10 * HOUR), uuids=["GPU-a"])
    assert early["resolution"].unique().tolist() == ["minute", "raw"]  # raw samples are kept for a day
    assert early["seconds"].sum() == pytest.approx(19 * HOUR, rel=2e-3)
    hours = gpulab.history(since=before(30 * HOUR), until=at(NOW), uuids=["GPU-a"], resolution="hour")
    assert set(hours["resolution"]) == {"hour"}
    assert hours["energy_joules"].sum() == pytest.approx(100 * len(hours) * HOUR, rel=0.05)
    assert hours["gpu_percent"].mean() == pytest.approx(45, abs=1)


def test_a_summary_counts_every_part_of_a_range_once(keep: Keep, settings: Settings) -> None:
    keep(range(30 * 60, -1, -1))
    for begin, end in ((30, 0), (29.013, 10.007), (3, 2.5), (0.02, 0.01), (200, 0)):
        since, until = NOW - begin * HOUR, NOW - end * HOUR
        found = summary.of_this_host(settings, since, until)
        told, unknown = found.devices
        covered = (min(begin, 30) - end) * HOUR
        assert told.sampled_seconds == pytest.approx(covered, abs=61)
        assert told.sampled_seconds <= until - since + 0.001
        assert found.coverage == pytest.approx(told.sampled_seconds / (until - since))
        assert told.energy_joules == pytest.approx(100 * told.sampled_seconds, rel=0.01)
        assert (unknown.gpu_percent, unknown.energy_joules, unknown.memory_max_bytes) == (None, None, None)
        if covered > HOUR / 4:
            assert told.gpu_percent == pytest.approx(45, abs=2)
            assert told.memory_max_bytes == 9 * 2**30


def test_a_frame_holds_just_what_the_rows_tell(settings: Settings) -> None:
    now = [NOW]
    store = Store(settings, clock=lambda: now[0])
    for second, watts, joules, percent in (
        (0, 50.0, 100.0, 10.0),
        (1, 60.0, 150.0, None),
        (2.2, None, 90.0, 30.0),  # the counter began anew, and the power is not known
        (3, 80.0, 10_000_000.0, 40.0),  # more than any device can take
        (4, 90.0, None, 50.0),
        (20, 90.0, 200.0, 60.0),  # after a gap
        (21, 90.0, 300.0, 70.0),
    ):
        now[0] = NOW + second
        reasons = None if percent is None else ("sw_power_cap", "hw_slowdown")
        gpus = [
            Device(
                place,
                uuid,
                "T4",
                gpu_percent=percent,
                power_watts=watts,
                energy_joules=joules,
                throttle_reasons=reasons,
                state="ok" if percent else "lost",
            )
            for place, uuid in enumerate(("GPU-z", "GPU-a"))
        ]
        assert store.append(Snapshot(now[0], DriverState(), tuple(gpus[: 1 if second == 1 else 2])))
    store.close()
    for since in (NOW - 10, NOW + 1.5):
        told = frame(rows(settings, since, NOW + 30, resolution="raw"))
        read = gpulab.history(since=at(since), until=at(NOW + 30), resolution="raw")
        pd.testing.assert_frame_equal(read, told)
    assert read["energy_joules"].tolist()[0] != read["energy_joules"].tolist()[-1]
    assert math.isnan(read["seconds"].iloc[-3])


def test_without_pandas_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, keep: Keep) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'gpulab\[history\]'"):
        gpulab.history()


def test_a_range_is_read_as_people_write_it() -> None:
    now = datetime(2030, 1, 31, 12, tzinfo=UTC).timestamp()
    local = datetime(2030, 1, 30, 18).timestamp()
    for since, begin in (
        ("24h", now - DAY),
        ("7d", now - 7 * DAY),
        ("90", now - 90),
        (90, now - 90),
        (timedelta(hours=2), now - 7200),
        ("2030-01-30T18:00", local),
        ("2030-01-30T18:00Z", datetime(2030, 1, 30, 18, tzinfo=UTC).timestamp()),
        ("2030-01-30T18:00+02:00", datetime(2030, 1, 30, 16, tzinfo=UTC).timestamp()),
        (datetime(2030, 1, 30, 18), local),
        (pd.Timestamp("2030-01-30T18:00Z"), datetime(2030, 1, 30, 18, tzinfo=UTC).timestamp()),
        ("2030-01-30", datetime(2030, 1, 30).timestamp()),
    ):
        assert span(since, now=now) == (begin, now), since
    assert span("2d", "1d", now=now) == (now - 2 * DAY, now - DAY)
    assert span("1h", "2031-01-01", now=now) == (now - HOUR, now)  # it ends now at the latest


@pytest.mark.parametrize(
    ("since", "until", "told"),
    [
        ("foo", None, "'foo' is no time"),
        ("", None, "'' is no time"),
        (-5, None, "'-5' is no time"),
        (math.nan, None, "'nan' is no time"),
        (None, None, "'None' is no time"),
        ([], None, "is no time"),
        ("1h", "2h", "let it begin before it ends"),
        ("1h", "1h", "let it begin before it ends"),
        ("9999-01-01", None, "has yet to come"),
        ("1e9d", None, "before any history"),
        ("1950-01-01", None, "before or beyond any history"),
        (datetime.min, None, "before or beyond any history"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused_in_one_sentence(
    since: object, until: object, told: str
) -> None:
    with pytest.raises(RequestError, match=told) as caught:
        span(since, until, now=1_900_000_000)  # type: ignore[arg-type]
    assert len(str(caught.value).splitlines()) == 1


def test_a_resolution_that_does_not_exist_is_refused(settings: Settings) -> None:
    with pytest.raises(RequestError, match="choose auto, raw, minute, hour"):
        gpulab.history(resolution="week")
