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
from gpulab.telemetry.ranges import Moment, iso, span
from gpulab.telemetry.reading import opened
from gpulab.telemetry.resolutions import Row, rows

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
    table = frame(rows(settings, begin, end, resolution=resolution, uuids=uuids))
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


def frame(found: Iterable[Row]) -> pd.DataFrame:
    """The rows as a DataFrame: "time" in UTC, texts as text, index as Int64, all figures as float64.

    Raises MissingDependencyError without pandas.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependencyError(
            "gpulab.history needs pandas, which is not installed; run `pip install 'gpulab[history]'`."
        ) from error
    columns: dict[str, Any] = {name: [] if name in _OBJECTS else array("d") for name in Row._fields}
    found = iter(found)
    while batch := list(itertools.islice(found, _BATCH)):
        for (name, column), values in zip(columns.items(), zip(*batch, strict=True), strict=True):
            column.extend(_cells(name, values))
    table: dict[str, Any] = {"time": pd.to_datetime(_milliseconds(columns["time"]), unit="ms", utc=True)}
    for name in Row._fields[1:]:
        kind = "Int64" if name == "index" else "object" if name in _OBJECTS else "float64"
        table[name] = pd.Series(columns[name], dtype=kind)
    return pd.DataFrame(table)


def _cells(name: str, values: tuple[Any, ...]) -> Iterable[Any]:
    if name == "throttle_reasons":
        return [None if told is None else " ".join(told) for told in values]
    if name in _OBJECTS:
        return values
    return [math.nan if value is None else value for value in values]


def _milliseconds(times: array[float]) -> Any:
    import numpy as np

    return (np.array(times, dtype="float64") * 1000).round().astype("int64")
