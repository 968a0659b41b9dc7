"""A device as a row of the history: whole numbers where they are shorter, and nothing impossible."""

from __future__ import annotations

import math
import sqlite3

from gpulab.hardware.devices import DEVICE_STATES, LINKS, Device
from gpulab.hardware.throttling import bits_of
from gpulab.telemetry.storing.schema import MAX_ID

__all__ = ["LAST_SECOND", "Names", "device_row", "is_time", "percent_of", "size_of"]

LAST_SECOND = 2.0**38
"""A time beyond this is no time: keys have room for so much."""
_MOST_BYTES = 2**50
_MOST_WATTS = 10_000
_MOST_JOULES = 1e13
_MOST_MEGAHERTZ = 20_000
_CELSIUS = (-60, 200)


def is_time(seconds: object) -> bool:
    """Whether this can be a time in seconds since the epoch."""
    return isinstance(seconds, int | float) and 0 < seconds < LAST_SECOND


def percent_of(value: float | None) -> float | None:
    """A share of 0 to 100, or None."""
    return _within(value, 0, 100)


def size_of(value: float | None, total: float | None = None) -> int | None:
    """A number of bytes that a device can have in use, or None."""
    found = _within(value, 0, _MOST_BYTES if total is None else total)
    return None if found is None else int(found)


def device_row(device: Device) -> tuple[object, ...]:
    """The columns of the table `raw` after the key, less the last, which is the sampling period."""
    reasons = device.throttle_reasons
    return (
        percent_of(device.gpu_percent),
        size_of(device.memory.used_bytes, device.memory.total_bytes),
        _thousandths(_within(device.power_watts, 0, _MOST_WATTS)),
        _within(device.temperature_celsius, *_CELSIUS),
        percent_of(device.memory_percent),
        _within(device.sm_clock_mhz, 0, _MOST_MEGAHERTZ),
        None if reasons is None else bits_of(reasons),
        _thousandths(_within(device.energy_joules, 0, _MOST_JOULES)),
        *(size_of(getattr(device, link)) for link in LINKS),
        DEVICE_STATES.index(device.state if device.state in DEVICE_STATES else "error"),
    )


def _within(value: float | None, least: float, most: float) -> float | None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value if least <= value <= most else None


def _thousandths(value: float | None) -> int | None:
    return None if value is None else round(value * 1000)


class Names:
    """The numbers that stand in the rows for devices, accounts and commands; of one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: dict[tuple[object, ...], int] = {}

    def device(self, uuid: str, name: str | None) -> int | None:
        """None if there have been more devices than keys have room for."""
        key = ("device", uuid, name)
        if key not in self._known:
            self._connection.execute(
                "INSERT INTO devices (uuid, name) VALUES (?, ?) "
                "ON CONFLICT (uuid) DO UPDATE SET name = coalesce(excluded.name, name)",
                (uuid, name),
            )
            self._known[key] = self._number("SELECT id FROM devices WHERE uuid = ?", uuid) or 0
        number = self._known[key]
        return number if number <= MAX_ID else None

    def has_device(self, uuid: str) -> bool:
        """Whether a sample ever told of it."""
        return self._number("SELECT id FROM devices WHERE uuid = ?", uuid) is not None

    def owner(self, uid: int | None, name: str | None) -> int:
        return self._named(
            "owner", "owners (uid, name) VALUES (?, ?)", "owners WHERE uid IS ? AND name IS ?", uid, name
        )

    def command(self, text: str | None) -> int | None:
        if text is None:
            return None
        return self._named("command", "commands (text) VALUES (?)", "commands WHERE text = ?", text)

    def _named(self, kind: str, insert: str, where: str, *values: object) -> int:
        key = (kind, *values)
        if key not in self._known:
            found = self._number(f"SELECT id FROM {where}", *values)  # noqa: S608 - our own constants
            if found is None:
                cursor = self._connection.execute(f"INSERT INTO {insert}", values)
                found = int(cursor.lastrowid or 0)
            self._known[key] = found
        return self._known[key]

    def _number(self, query: str, *values: object) -> int | None:
        found = self._connection.execute(query, values).fetchone()
        return None if found is None else int(found[0])
