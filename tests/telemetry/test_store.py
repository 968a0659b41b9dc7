from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from gpulab.allocation.records import LeaseRecord
from gpulab.config import Settings
from gpulab.hardware.devices import Device, DriverState, Memory, Snapshot
from gpulab.telemetry import series
from gpulab.telemetry.store import RAW_SECONDS, SCHEMA_VERSION, Sample, Store, recent, store_path

NOON = 1_800_000_000.0
Ticking = Callable[..., Store]


@pytest.fixture
def ticking(settings: Settings) -> Ticking:
    """A store whose own clock goes with the snapshots' times, so that those are believed at once."""

    class Following(Store):
        def append(self, snapshot: Snapshot, leases: Sequence[LeaseRecord] | None = None) -> bool:
            now[0] = snapshot.time
            return super().append(snapshot, leases)

    now = [NOON]
    return lambda **options: Following(settings, clock=lambda: now[0], **options)


def snapshot(time: float, *devices: Device) -> Snapshot:
    return Snapshot(time, DriverState(), devices or (Device(0, "GPU-a", "T4"),))


def busy(uuid: str, percent: float | None = 80.0) -> Device:
    return Device(0, uuid, "T4", memory=Memory(used_bytes=5 * 2**30), gpu_percent=percent, power_watts=61.5)


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """What a full disk is to a process: its writes fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_what_was_appended_is_read_back_by_uuid_in_order(settings: Settings) -> None:
    store = Store(settings)
    for second in range(3):
        assert store.append(snapshot(NOON + second, busy("GPU-a", second), busy("GPU-b")))
    series = recent(settings, 60, until=NOON + 2)
    assert [sample.gpu_percent for sample in series["GPU-a"]] == [0, 1, 2]
    assert series["GPU-b"][-1] == Sample(NOON + 2, 80.0, 5 * 2**30, 61.5, None, state="ok")


def test_unknown_figures_stay_unknown(settings: Settings) -> None:
    Store(settings).append(snapshot(NOON, Device(0, "GPU-a")))
    assert recent(settings, 60, until=NOON)["GPU-a"] == [Sample(NOON, None, None, None, None, state="ok")]


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


def test_raw_samples_are_kept_for_a_day(settings: Settings, ticking: Ticking) -> None:
    store = ticking()
    for hour in range(26):
        store.append(snapshot(NOON + hour * 3600, busy("GPU-a")))
    times = [sample.time for sample in recent(settings, 3 * RAW_SECONDS, until=NOON + 25 * 3600)["GPU-a"]]
    assert times[0] == NOON + 3600
    assert len(times) == 25


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
    many = [busy(f"GPU-{number:040}") for number in range(500)]
    with no_file_beyond(16_384):
        assert not store.append(snapshot(NOON + 1, *many))
        assert not store.append(snapshot(NOON + 2, *many))
    assert [record.message for record in caplog.records] == ["History is not written: disk I/O error"]
    assert store.append(snapshot(NOON + 3))
    assert [sample.time for sample in recent(settings, 60, until=NOON + 3)["GPU-a"]] == [NOON, NOON + 3]


def test_values_that_cannot_be_are_not_stored(settings: Settings) -> None:
    impossible = Device(
        0,
        "GPU-a",
        memory=Memory(total_bytes=2**34, used_bytes=2**60),
        gpu_percent=250.0,
        power_watts=-3.0,
        temperature_celsius=float("nan"),
        energy_joules=float("inf"),
        memory_percent=-1.0,
    )
    Store(settings).append(snapshot(NOON, impossible))
    assert recent(settings, 60, until=NOON)["GPU-a"] == [Sample(NOON, None, None, None, None, state="ok")]


@pytest.mark.parametrize("time", [float("nan"), float("inf"), -5.0, 0.0, 1e300])
def test_a_time_that_is_none_is_not_stored_and_that_is_said_once(
    settings: Settings, time: float, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(settings)
    assert not store.append(snapshot(time))
    assert not store.append(snapshot(time))
    assert len(caplog.records) == 1
    assert "is no time; set this machine's clock" in caplog.text


def first_version(settings: Settings, samples: int) -> None:
    """A history as the first version of gpulab wrote it."""
    with closing(sqlite3.connect(store_path(settings))) as connection, connection:
        connection.executescript(
            "CREATE TABLE devices (id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, name TEXT);"
            "CREATE TABLE samples (time REAL NOT NULL, device INTEGER NOT NULL REFERENCES devices (id),"
            "gpu_percent REAL, memory_used_bytes INTEGER, power_watts REAL, temperature_celsius REAL,"
            "PRIMARY KEY (time, device)) WITHOUT ROWID; PRAGMA user_version = 1;"
        )
        connection.execute("INSERT INTO devices VALUES (1, 'GPU-a', 'T4')")
        rows = [(NOON + second, 1, 50.0, 2**30, 61.5, None) for second in range(samples)]
        connection.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?)", rows)


_READ_FIRST = """
SELECT uuid, time, gpu_percent, memory_used_bytes, power_watts, temperature_celsius
FROM samples JOIN devices ON devices.id = samples.device WHERE time >= ? AND time <= ? ORDER BY time
"""
"""How the first version reads."""


def test_a_history_of_the_first_version_is_read_as_it_is_and_written_on(settings: Settings) -> None:
    first_version(settings, 130)
    before = recent(settings, 300, until=NOON + 130)["GPU-a"]
    assert before[5] == Sample(NOON + 5, 50.0, 2**30, 61.5, None)
    assert len(before) == 130
    assert series.usage(settings, NOON, NOON + 129) == [
        series.Usage(None, None, "GPU-a", 0.0, 64.5, None, 129 * 61.5)
    ]
    assert series.reduced(settings, NOON, NOON + 130, points=13)["GPU-a"][3].gpu_percent == 50
    store = Store(settings)
    assert store.append(snapshot(NOON + 130, busy("GPU-a")))
    after = recent(settings, 300, until=NOON + 130)["GPU-a"]
    assert after[:130] == before
    assert after[130].gpu_percent == 80
    assert [rollup.seconds for rollup in series.rollups(settings, NOON, NOON + 120)] == [60, 60]


def test_the_first_version_goes_on_reading_a_history_of_this_one_and_cannot_write_it(
    settings: Settings,
) -> None:
    store = Store(settings)
    store.append(snapshot(NOON, busy("GPU-a")))
    with closing(sqlite3.connect(store_path(settings))) as connection:
        assert connection.execute(_READ_FIRST, (NOON - 1, NOON + 1)).fetchall() == [
            ("GPU-a", NOON, 80.0, 5 * 2**30, 61.5, None)
        ]
        with pytest.raises(sqlite3.OperationalError, match="cannot modify samples because it is a view"):
            connection.execute(
                "INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?, ?)", (NOON, 1, 1, 1, 1, 1)
            )
    assert store.append(snapshot(NOON + 1))


def test_readers_are_told_of_a_newer_gpulab_and_nothing_is_written(settings: Settings) -> None:
    with closing(sqlite3.connect(store_path(settings))) as connection:
        connection.execute("CREATE TABLE future (x)")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    content = Path(store_path(settings)).read_bytes()
    Store(settings).append(snapshot(NOON))
    assert series.samples(settings, 0) == {}
    assert "was written by a newer gpulab; update gpulab" in (series.trouble(settings) or "")
    assert Path(store_path(settings)).read_bytes() == content


def test_damage_that_only_a_reader_meets_is_found_by_the_writer_within_a_minute(
    settings: Settings, ticking: Ticking, caplog: pytest.LogCaptureFixture
) -> None:
    store = ticking()
    for second in range(0, 1800, 2):
        store.append(snapshot(NOON + second, *[busy(f"GPU-{number}") for number in range(8)]))
    store.close()
    with closing(sqlite3.connect(store_path(settings))) as connection:
        page = connection.execute(
            "SELECT pageno FROM dbstat WHERE name = 'raw' AND pagetype = 'leaf'"
        ).fetchall()
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    with open(store_path(settings), "r+b") as file:
        file.seek((page[len(page) // 2][0] - 1) * size)
        file.write(b"\xff" * size)
    assert store.append(snapshot(NOON + 1801, busy("GPU-0")))
    assert series.trouble(settings) is None
    series.samples(settings, NOON, NOON + 1801)
    assert "is damaged; its sampler will soon start it anew" in (series.trouble(settings) or "")
    assert not store.append(snapshot(NOON + 1861, busy("GPU-0")))
    assert "History is started anew" in caplog.text
    assert store.append(snapshot(NOON + 1862, busy("GPU-0")))
    assert series.trouble(settings) is None
    assert len(recent(settings, 60, until=NOON + 1862)["GPU-0"]) == 1
    assert os.path.exists(store_path(settings) + ".broken")


def test_at_most_two_broken_files_are_kept(settings: Settings, ticking: Ticking) -> None:
    for turn in range(4):
        Path(store_path(settings)).write_bytes(b"no database %d" % turn * 1000)
        store = ticking()
        assert not store.append(snapshot(NOON + turn))
        assert store.append(snapshot(NOON + turn + 0.5))
        store.close()
    kept = sorted(Path(settings.machine_dir).glob("*.broken*"))
    assert [path.read_bytes()[:13] for path in kept] == [b"no database 3", b"no database 2"]


def test_a_history_that_was_moved_away_is_begun_anew(settings: Settings, ticking: Ticking) -> None:
    store = ticking()
    store.append(snapshot(NOON))
    os.replace(store_path(settings), store_path(settings) + ".mine")
    store.append(snapshot(NOON + 60))
    store.append(snapshot(NOON + 61))
    assert [sample.time for sample in series.samples(settings, NOON, NOON + 61)["GPU-a"]] == [NOON + 61]


def test_a_directory_that_is_missing_is_said_once_and_its_return_is_noticed(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(settings.data_dir)
    store = Store(settings)
    assert not store.append(snapshot(NOON))
    assert not store.append(snapshot(NOON + 1))
    assert len(caplog.records) == 1
    os.makedirs(settings.machine_dir)
    assert store.append(snapshot(NOON + 2))


def test_beyond_its_size_the_oldest_samples_give_way_and_the_minutes_stay(
    settings: Settings, ticking: Ticking, caplog: pytest.LogCaptureFixture
) -> None:
    bound = 2**20
    store = ticking(size_bound=bound)
    devices = [busy(f"GPU-{number}") for number in range(32)]
    for second in range(0, 3600, 3):
        assert store.append(snapshot(NOON + second, *devices))
    store.close()
    assert os.path.getsize(store_path(settings)) < 1.2 * bound
    assert [record.message for record in caplog.records] == [
        "The history has reached its bound of 1.0 MiB: its oldest samples give way."
    ]
    times = [sample.time for sample in series.samples(settings, NOON, NOON + 3600)["GPU-0"]]
    assert times[-1] == NOON + 3597
    assert NOON + 300 < times[0] < NOON + 3000
    assert series.rollups(settings, NOON, NOON + 3600)[0].time == NOON


def test_a_smaller_bound_gives_the_space_back(settings: Settings, ticking: Ticking) -> None:
    devices = [busy(f"GPU-{number}") for number in range(32)]
    store = ticking()
    for second in range(0, 3600, 3):
        store.append(snapshot(NOON + second, *devices))
    store.close()
    before = os.path.getsize(store_path(settings))
    smaller = ticking(size_bound=before // 3)
    for minute in range(3):
        smaller.append(snapshot(NOON + 3600 + 60 * minute, *devices))
    smaller.close()
    assert os.path.getsize(store_path(settings)) < before // 2


def test_a_clock_that_jumps_years_ahead_drops_nothing_until_it_has_been_steady(settings: Settings) -> None:
    steady = [0.0]
    store = Store(settings, clock=lambda: steady[0])
    years = 5 * 365 * 86400.0
    for second in range(5):
        steady[0] = second
        store.append(snapshot(NOON + second))
    for second in range(0, 540, 20):
        steady[0] = 10.0 + second
        store.append(snapshot(NOON + years + second))
    assert len(series.samples(settings, NOON, NOON + 10)["GPU-a"]) == 5
    steady[0] = 600.0
    store.append(snapshot(NOON + 600))  # it was wrong, and is set right
    assert len(series.samples(settings, NOON, NOON + 600)["GPU-a"]) == 6
    for second in range(0, 800, 20):
        steady[0] = 700.0 + second
        store.append(snapshot(NOON + years + 700 + second))
    assert series.samples(settings, NOON, NOON + 10) == {}


def test_a_clock_set_back_overwrites_nothing_and_counts_nothing_twice(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    steady = [0.0]
    store = Store(settings, clock=lambda: steady[0])
    for second in range(300):
        steady[0] += 1
        store.append(snapshot(NOON + second, busy("GPU-a", 100)))
    told = [store.append(snapshot(NOON + 100 + second + 0.4, busy("GPU-a", 0))) for second in range(250)]
    assert told == [False] * 200 + [True] * 50 or told == [False] * 199 + [True] * 51
    assert caplog.messages == ["The clock was set back: what the history tells of this time already stands."]
    first = series.samples(settings, NOON, NOON + 299)["GPU-a"]
    assert [sample.gpu_percent for sample in first] == [100] * 300
    assert sum(rollup.seconds for rollup in series.rollups(settings, NOON, NOON + 300)) <= 300


READ = """
import json, os, sys, urllib.parse
from gpulab.config import Settings
from gpulab.telemetry import series
path, uid = sys.argv[1], int(sys.argv[2])
series.trouble(Settings(data_dir=path))  # imports the rest: it may lie where another may not read
os.setgroups([]); os.setgid(uid); os.setuid(uid)
settings = Settings(data_dir=path)
found = series.samples(settings, 0, 2e9)
print(json.dumps([len(found.get("GPU-a", [])), series.trouble(settings)]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second account, so root")
def test_another_account_reads_a_service_s_history_while_it_runs_after_its_end_and_after_kill_9(
    passable: Path,
) -> None:
    public = passable / "public"
    settings = Settings(data_dir=str(public))
    os.makedirs(settings.machine_dir, mode=0o755)
    path = store_path(settings)

    def read() -> list[object]:
        command = [sys.executable, "-c", READ, str(public), "54322"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
        return json.loads(done.stdout)

    before = os.umask(0o077)
    try:
        store = Store(settings, path=path)
        store.append(snapshot(NOON))
        assert read() == [1, None]
        store.close()
    finally:
        os.umask(before)
    assert os.stat(path).st_mode & 0o777 == 0o644
    assert not os.path.exists(path + "-wal")
    assert read() == [1, None]
    child = os.fork()
    if child == 0:
        Store(settings, path=path).append(snapshot(NOON + 1))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert os.path.getsize(path + "-wal") > 0
    assert read() == [2, None]
    os.chmod(path, 0o600)
    count, why = read()
    assert count == 0
    assert "ask its owner for permission" in str(why)
