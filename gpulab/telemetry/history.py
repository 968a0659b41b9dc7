"""`gpulab.history`: the rows of the history as a DataFrame."""

from __future__ import annotations

import itertools
import math
import os
from array import array
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from gpulab import config
from gpulab.config import Settings
from gpulab.errors import MissingDependencyError
from gpulab.telemetry import series
from gpulab.telemetry.reading.columns import raw_columns
from gpulab.telemetry.reading.file import opened
from gpulab.telemetry.reading.ranges import Moment, iso, span
from gpulab.telemetry.reading.resolutions import Known, Row, Segment, known_devices, plan, rows_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["frame", "history", "missing"]

_OBJECTS = ("uuid", "name", "index", "resolution", "throttle_reasons", "state")
_BATCH = 4096


def history(
    since: Moment = "24h",
    until: Moment | None = None,
    *,
    resolution: str = "auto",
    uuids: Collection[str] | None = None,
    settings: Settings | None = None,
) -> pd.DataFrame:
    """What this machine's GPUs did, one row for each device and sample.

    Parameters
    ----------
    since, until
        A duration before now ("1h", "7d", seconds, a timedelta), or an instant: a datetime or ISO 8601 text,
        in local time if it names no zone. `until` None means now.
    resolution
        "raw" (each sample, kept for a day), "minute" (30 days), "hour" (a year), or "auto": the finest that
        is meant for a range of this length, with coarser rows before and finer ones after where it has none.
    uuids
        Only these devices.

    Returns
    -------
    A DataFrame sorted by time, with the columns of `Row`: "time" in UTC, then uuid, name, index, resolution,
    seconds (the time a row stands for), gpu_percent and so on. Unknown is NaN (None in texts), and a gap has
    no rows. Without a history there are no rows but all columns; `attrs["trouble"]` then says why in one
    sentence, else it is None.

    Raises RequestError for a range or resolution that makes no sense, MissingDependencyError without pandas.
    """
    settings = config.load() if settings is None else settings
    begin, end = span(since, until)
    pandas = _pandas()
    devices = known_devices(settings)
    parts = [_part(settings, part, devices) for part in plan(settings, begin, end, resolution)]
    told = [part if uuids is None else part[part["uuid"].isin(list(uuids))] for part in parts]
    filled = [part for part in told if len(part)]
    table: pd.DataFrame = pandas.concat(filled, ignore_index=True) if filled else frame(())
    table.attrs.update(
        since=iso(begin),
        until=iso(end),
        trouble=missing(settings),
        simulated=settings.simulate is not None,
    )
    return table


def missing(settings: Settings) -> str | None:
    """Why there is no history, in one sentence; None if there is one, however short."""
    trouble = series.trouble(settings)
    if trouble is not None:
        return trouble
    with opened(settings) as connection:
        if connection is not None:
            return None
    return (
        f"There is no history yet in {os.path.dirname(series.history_path(settings))}; it is kept while "
        "somebody watches (`gpulab status --watch`, a monitor), holds a lease, or `gpulab serve` runs."
    )


def _part(settings: Settings, segment: Segment, devices: dict[str, Known]) -> pd.DataFrame:
    if segment.level == "raw":
        return _table(raw_columns(settings, segment, devices))
    return frame(rows_of(settings, segment, devices))


def frame(found: Iterable[Row]) -> pd.DataFrame:
    """The rows as a DataFrame: "time" in UTC, texts as text, index as Int64, all figures as float64.

    Raises MissingDependencyError without pandas.
    """
    _pandas()
    columns: dict[str, Any] = {name: [] if name in _OBJECTS else array("d") for name in Row._fields}
    found = iter(found)
    while batch := list(itertools.islice(found, _BATCH)):
        for (name, column), values in zip(columns.items(), zip(*batch, strict=True), strict=True):
            column.extend(_cells(name, values))
    columns["time"] = [round(moment * 1000) for moment in columns["time"]]
    return _table(columns)


def _table(columns: dict[str, Any]) -> pd.DataFrame:
    """From columns of objects and figures; "time" is in milliseconds."""
    import numpy as np

    pandas = _pandas()
    moments = np.asarray(columns["time"], dtype="int64")
    table: dict[str, Any] = {"time": pandas.to_datetime(moments, unit="ms", utc=True)}
    for name in Row._fields[1:]:
        kind = "Int64" if name == "index" else "object" if name in _OBJECTS else "float64"
        table[name] = pandas.Series(columns[name], dtype=kind)
    made: pd.DataFrame = pandas.DataFrame(table)
    return made


def _cells(name: str, values: tuple[Any, ...]) -> Iterable[Any]:
    if name == "throttle_reasons":
        return [None if told is None else " ".join(told) for told in values]
    if name in _OBJECTS:
        return values
    return [math.nan if value is None else value for value in values]


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependencyError(
            "gpulab.history needs pandas, which is not installed; run `pip install 'gpulab[history]'`."
        ) from error
    return pd
