"""The history: a day of 8 GPUs on disk, an hour reduced, a year of roll-ups, and what a sample costs.

The day is made whole through `Store.append`: 86,400 seconds of 8 GPUs with 4 processes each. The year's
roll-ups are rows like that day's, put into the tables by SQL: 30 days of minutes and 366 of hours.
"""

from __future__ import annotations

import math
import os
import random
import resource
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator

from gpulab.allocation.records import LeaseRecord
from gpulab.config import Settings
from gpulab.hardware.devices import Device, DriverState, Memory, Process, Snapshot
from gpulab.telemetry import series
from gpulab.telemetry.store import Store
from gpulab.telemetry.storing.keeping import HOURS_SECONDS, MINUTES_SECONDS
from gpulab.telemetry.storing.schema import HOUR, ID_BITS, MAX_ID, MINUTE

__all__ = ["run"]

_DAY_BYTES, _YEAR_BYTES = 60e6, 200e6
_READ_SECONDS = 0.020
_APPEND_SECONDS = 0.001
_GPUS, _PROCESSES = 8, 4
_START = 1_799_971_200.0
"""A midnight (UTC)."""
_GIB = 2**30


def run(seconds: int = 86_400) -> bool:
    """Print the figures beside their limits; False if one is broken."""
    with tempfile.TemporaryDirectory(prefix="gpulab-benchmark-") as folder:
        settings = Settings(data_dir=folder)
        os.makedirs(settings.machine_dir)
        spent, grown = _make_day(settings, seconds)
        day = _size(settings) * 86_400 / seconds
        scaled = "" if seconds == 86_400 else f", scaled from {seconds} s"
        kept = [
            _tell(f"a day of {_GPUS} GPUs with processes{scaled}", day / 1e6, _DAY_BYTES / 1e6, "MB"),
            _tell("a sample written, with its roll-ups (CPU)", spent * 1e3, _APPEND_SECONDS * 1e3, "ms"),
            _tell("the last hour reduced", _read(settings, seconds) * 1e3, _READ_SECONDS * 1e3, "ms"),
        ]
        print(f"  the writer's memory grew by {grown / 2**20:.1f} MiB over the day")
        kept.append(_tell("a year of roll-ups", _make_year(settings) / 1e6, _YEAR_BYTES / 1e6, "MB"))
        end = _START + seconds
        for span, name in ((86_400, "a day"), (MINUTES_SECONDS, "30 days"), (HOURS_SECONDS, "a year")):
            begun = time.perf_counter()
            series.reduced(settings, end - span, end)
            reduced = time.perf_counter()
            series.usage(settings, end - span, end)
            used = time.perf_counter() - reduced
            print(f"  {name}: reduced in {(reduced - begun) * 1e3:.0f} ms, usage in {used * 1e3:.0f} ms")
    return all(kept)


def _make_day(settings: Settings, seconds: int) -> tuple[float, float]:
    """CPU seconds for each sample, and the bytes by which this process grew."""
    now = [_START]
    store = Store(settings, clock=lambda: now[0])
    leases = _leases()
    spent = 0.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for snapshot in _snapshots(seconds):
        now[0] = snapshot.time
        begun = time.process_time()
        assert store.append(snapshot, leases if snapshot.time % 5 < 1 else None)
        spent += time.process_time() - begun
    store.close()
    return spent / seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def _snapshots(seconds: int) -> Iterator[Snapshot]:
    """Figures that move as real ones do: utilization and power each second, memory now and then."""
    dice = random.Random(7)
    level = [dice.uniform(0, 100) for _ in range(_GPUS)]
    sizes = [[dice.randrange(2, 18) * _GIB for _ in range(_PROCESSES)] for _ in range(_GPUS)]
    joules = [dice.uniform(1e6, 1e8) for _ in range(_GPUS)]
    for second in range(seconds):
        devices = []
        for gpu in range(_GPUS):
            level[gpu] = min(100.0, max(0.0, level[gpu] + dice.gauss(0, 8)))
            if dice.random() < 0.02:
                sizes[gpu][dice.randrange(_PROCESSES)] = dice.randrange(2, 18) * _GIB
            watts = round(70 + 6.3 * level[gpu] + dice.uniform(-5, 5), 3)
            joules[gpu] += watts
            devices.append(_device(gpu, level[gpu], sizes[gpu], watts, joules[gpu]))
        yield Snapshot(_START + second + dice.uniform(0, 0.01), DriverState(), tuple(devices))


def _device(gpu: int, level: float, sizes: list[int], watts: float, joules: float) -> Device:
    percent = float(round(level))
    return Device(
        gpu,
        f"GPU-{gpu:08x}-0000-0000-0000-000000000000",
        "benchmark",
        memory=Memory(total_bytes=80 * _GIB, used_bytes=sum(sizes) + 600 * 2**20),
        gpu_percent=percent,
        memory_percent=float(round(level / 2)),
        temperature_celsius=float(round(35 + level / 3)),
        power_watts=watts,
        energy_joules=joules,
        processes=tuple(
            Process(1000 + gpu * 10 + place, f"user{place % 2}", "python3", size, percent / _PROCESSES)
            for place, size in enumerate(sizes)
        ),
    )


def _leases() -> tuple[LeaseRecord, ...]:
    return tuple(
        LeaseRecord(
            f"{gpu:06x}{place:02x}",
            (f"GPU-{gpu:08x}-0000-0000-0000-000000000000",),
            "shared",
            30 * _GIB,
            uid=1000 + place,
            user=f"user{place}",
            since=_START,
        )
        for gpu in range(_GPUS)
        for place in range(2)
    )


def _read(settings: Settings, seconds: int) -> float:
    """The median of several readings, each with a connection of its own."""
    taken = []
    for _ in range(7):
        begun = time.perf_counter()
        curves = series.reduced(settings, _START + seconds - 3600, _START + seconds)
        taken.append(time.perf_counter() - begun)
        assert len(curves) == _GPUS
        assert all(math.isclose(len(curve), 300, abs_tol=2) for curve in curves.values())
    return statistics.median(taken)


def _make_year(settings: Settings) -> float:
    """Bytes of a year's roll-ups: today's rows as those of the days before, without raw rows."""
    with sqlite3.connect(series.store_path(settings)) as connection:
        for table in ("raw", "processes", "tens"):
            connection.execute(f"DELETE FROM {table}")
        for table, kept, length in (("minutes", MINUTES_SECONDS, MINUTE), ("hours", HOURS_SECONDS, HOUR)):
            _repeat(connection, table, int(kept / 86_400), 86_400 // length)
    connection.execute("VACUUM")
    connection.close()
    return _size(settings)


def _repeat(connection: sqlite3.Connection, table: str, days: int, a_day: int) -> None:
    length = 86_400 // a_day
    count = connection.execute(f"SELECT count(DISTINCT key >> {ID_BITS}) FROM {table}").fetchone()[0]
    template, usage = f"template_{table}", f"template_usage_{table}"
    connection.execute(f"CREATE TEMP TABLE {template} AS SELECT * FROM {table}")
    connection.execute(f"CREATE TEMP TABLE {usage} AS SELECT * FROM usage_{table}")
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")][1:]
    for turn in range(1, math.ceil(days * a_day / count)):
        back = turn * count * length
        connection.execute(
            f"INSERT OR IGNORE INTO {table} SELECT (((key >> {ID_BITS}) - {back}) << {ID_BITS}) | "
            f"(key & {MAX_ID}), {', '.join(columns)} FROM {template}"
        )
        connection.execute(
            f"INSERT OR IGNORE INTO usage_{table} SELECT start - {back}, device, uid, used_milliseconds, "
            f"idle_milliseconds, energy_millijoules FROM {usage}"
        )


def _size(settings: Settings) -> float:
    path = series.store_path(settings)
    return float(sum(os.path.getsize(path + end) for end in ("", "-wal") if os.path.exists(path + end)))


def _tell(what: str, figure: float, limit: float, unit: str) -> bool:
    kept = figure <= limit
    print(f"  {what}: {figure:.2f} {unit} (at most {limit:.0f}) {'' if kept else 'BROKEN'}")
    return kept


if __name__ == "__main__":
    raise SystemExit(0 if run(*map(int, sys.argv[1:2])) else 1)
