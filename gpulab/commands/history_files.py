"""The history for programs: CSV, JSON and Parquet, row by row, so that a year needs no more memory."""

from __future__ import annotations

import csv
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

from gpulab.allocation.naming import HIDDEN, shown_login
from gpulab.config import Settings, host_name
from gpulab.errors import GpulabError, MissingDependencyError, RequestError
from gpulab.telemetry.reading.ranges import iso
from gpulab.telemetry.reading.resolutions import Row, rows
from gpulab.telemetry.reading.summary import Summary, UserSummary

__all__ = ["write_csv", "write_json", "write_parquet"]

_STDOUT = "-"
_BATCH = 8192


def write_csv(path: str, settings: Settings, since: float, until: float, resolution: str) -> None:
    """A line for each row, after the names of the columns; unknown is empty. Raises GpulabError."""
    found = rows(settings, since, until, resolution=resolution)
    with _target(path, binary=False) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        for row in found:
            reasons = None if row.throttle_reasons is None else " ".join(row.throttle_reasons)
            writer.writerow(row._replace(time=iso(row.time), throttle_reasons=reasons))  # type: ignore[arg-type]


def write_json(path: str, found: Summary, settings: Settings, resolution: str | None) -> None:
    """One object, `gpulab.history/1`; null where unknown. `resolution` None: without samples.

    Raises GpulabError.
    """
    head = {
        "schema": "gpulab.history/1",
        "host": host_name(),
        "time": iso(time.time()),
        "simulated": found.simulated,
        "since": iso(found.since),
        "until": iso(found.until),
        "sampled_seconds": round(found.sampled_seconds, 3),
        "coverage": round(found.coverage, 6),
        "hosts": list(found.hosts),
        "devices": [device._asdict() for device in found.devices],
        "users": [_user(user, settings) for user in found.users],
        "resolution": resolution,
    }
    samples = (
        iter(()) if resolution is None else rows(settings, found.since, found.until, resolution=resolution)
    )
    with _target(path, binary=False) as file:
        file.write(json.dumps(head)[:-1])
        file.write(', "samples": ')
        if resolution is None:
            file.write("null}\n")
            return
        before = "["
        for row in samples:
            file.write(before + json.dumps({**row._asdict(), "time": iso(row.time)}))
            before = ",\n"
        file.write("[]}\n" if before == "[" else "]}\n")


def write_parquet(path: str, settings: Settings, since: float, until: float, resolution: str) -> None:
    """The rows as a Parquet file, in the place of what was there once it is whole. Raises GpulabError."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependencyError(
            "--parquet needs pyarrow, which is not installed; run `pip install 'gpulab[history]'`."
        ) from error
    if path == _STDOUT:
        raise RequestError("A Parquet file cannot go to stdout; name a file after --parquet.")
    found = rows(settings, since, until, resolution=resolution)
    schema = _parquet_schema(pa)
    with _target(path, binary=True) as file, parquet.ParquetWriter(file, schema) as writer:
        while batch := list(itertools.islice(found, _BATCH)):
            writer.write_table(_table(pa, schema, batch))


def _parquet_schema(pa: Any) -> Any:
    kinds = {
        "time": pa.timestamp("ms", tz="UTC"),
        "index": pa.int32(),
        "memory_max_bytes": pa.int64(),
        **dict.fromkeys(("uuid", "name", "resolution", "throttle_reasons", "state"), pa.string()),
    }
    return pa.schema([(name, kinds.get(name, pa.float64())) for name in Row._fields])


def _table(pa: Any, schema: Any, batch: list[Row]) -> Any:
    columns = dict(zip(Row._fields, map(list, zip(*batch, strict=True)), strict=True))
    columns["time"] = [round(moment * 1000) for moment in columns["time"]]
    columns["throttle_reasons"] = [
        None if told is None else " ".join(told) for told in columns["throttle_reasons"]
    ]
    return pa.table(columns, schema=schema)


def _user(user: UserSummary, settings: Settings) -> dict[str, Any]:
    """As in `gpulab.status/1`: the number is no secret where names are."""
    shown = shown_login(user.user, settings.names)
    return {**user._asdict(), "user": None if shown == HIDDEN else shown}


@contextmanager
def _target(path: str, *, binary: bool) -> Iterator[IO[Any]]:
    """stdout, or a file that is there once it is whole. Raises GpulabError if it cannot be written."""
    if path == _STDOUT:
        yield sys.stdout
        return
    whole = not os.path.exists(path) or os.path.isfile(path)  # a pipe or a terminal is written as it is
    place = os.path.realpath(path)  # what a link leads to, not the link, gives way
    temporary = f"{place}.{os.getpid()}.part" if whole else place
    try:
        with open(temporary, "wb" if binary else "w", encoding=None if binary else "utf-8") as file:
            yield file
        if whole:
            os.replace(temporary, place)
    except OSError as error:
        raise GpulabError(
            f"{path} cannot be written ({error.strerror or error}); name a file in a directory of yours."
        ) from error
    finally:
        if whole:
            with suppress(OSError):
                os.unlink(temporary)
