"""What `gpulab history` tells people: who held and used what, what each GPU did, how much was sampled."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from gpulab.allocation.directory import find
from gpulab.allocation.naming import shown_login
from gpulab.commands.wording import clean
from gpulab.config import Settings
from gpulab.errors import GpulabError
from gpulab.telemetry.prometheus import without_login
from gpulab.telemetry.reading.summary import DeviceSummary, Summary, UserSummary
from gpulab.units import format_duration

__all__ = ["energy", "gpu_hours", "show"]

_COMPLETE = 0.99
"""From here on a few seconds without a sample are not worth a word."""


def show(found: Summary, settings: Settings, *, url: str | None = None) -> None:
    """Print it; `url` is the Prometheus that it came from."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(_headline(found, url), style="bold"))
    console.print(Text(_covered(found)))
    many = len(found.hosts) > 1 or url is not None
    if found.users:
        console.print()
        console.print(_users(found.users, settings, many=many))
    if found.devices:
        console.print()
        console.print(_devices(found, many=many))
    for note in _notes(found, settings, url):
        console.print(Text(f"({note})", style="dim"))


def gpu_hours(seconds: float | None) -> str:
    """`0.25`, `21.5`, `1204`; `n/a` if unknown."""
    if seconds is None:
        return "n/a"
    hours = seconds / 3600
    return f"{hours:.2f}" if hours < 10 else f"{hours:.1f}" if hours < 1000 else f"{hours:.0f}"


def energy(joules: float | None) -> str:
    """`0.24 Wh`, `123 Wh`, `6.3 kWh`, `1.2 MWh`; `n/a` if unknown."""
    if joules is None:
        return "n/a"
    hours = joules / 3600
    if hours < 1:  # no joules: 850 J would look like more than 1.2 Wh
        return f"{hours:.2f} Wh"
    unit, factor = next(pair for pair in (("MWh", 1e6), ("kWh", 1e3), ("Wh", 1.0)) if hours >= pair[1])
    amount = hours / factor
    return f"{amount:.1f} {unit}" if amount < 100 else f"{amount:.0f} {unit}"


def _headline(found: Summary, url: str | None) -> str:
    where = without_login(url) if url is not None else found.hosts[0]
    hosts = [f"{len(found.hosts)} host{'' if len(found.hosts) == 1 else 's'}"] if url is not None else []
    first, last = (_zone(moment) for moment in (found.since, found.until))
    since = _local(found.since) + ("" if first == last else f" {first}")  # the clocks were changed in between
    simulated = ["simulated machine"] if found.simulated else []
    return " · ".join([clean(where), *hosts, f"{since} to {_local(found.until)} {last}", *simulated])


def _covered(found: Summary) -> str:
    seconds = found.until - found.since
    length = f"{seconds:.0f} s" if seconds < 600 else format_duration(seconds)
    if not found.sampled_seconds:
        return f"Nothing was sampled in these {length}, so nothing is known of them."
    if found.coverage >= _COMPLETE:
        return f"Sampled: all of these {length}."
    share = "< 1 %" if found.coverage < 0.01 else _percent(100 * found.coverage)
    return (
        f"Sampled: {share} of these {length}; the rest is unknown, and counts neither as use nor as idleness."
    )


def _users(users: tuple[UserSummary, ...], settings: Settings, *, many: bool) -> Any:
    table = _empty(
        *((("host", "left"),) if many else ()),
        ("user", "left"),
        ("GPUs", "right"),
        ("held GPU-h", "right"),
        ("used GPU-h", "right"),
        ("idle", "right"),
        ("energy", "right"),
    )
    for user in users:
        idle = user.idle_seconds
        share = None if idle is None or not user.held_seconds else min(100, 100 * idle / user.held_seconds)
        _add(
            table,
            *((user.host,) if many else ()),
            _who(user, settings),
            str(user.devices),
            gpu_hours(user.held_seconds),
            gpu_hours(user.used_seconds),
            _percent(share),
            energy(user.energy_joules),
        )
    return table


def _who(user: UserSummary, settings: Settings) -> str:
    if user.user is None:
        return "(owner not seen)" if user.uid is None else f"uid {user.uid}"
    return shown_login(user.user, settings.names) or "n/a"


def _devices(found: Summary, *, many: bool) -> Any:
    table = _empty(
        *((("host", "left"),) if many else ()),
        ("GPU", "right"),
        ("name", "left"),
        ("sampled", "right"),
        ("held", "right"),
        ("busy", "right"),
        ("memory peak", "right"),
        ("energy", "right"),
    )
    length = found.until - found.since
    for device in found.devices:
        _add(
            table,
            *((device.host,) if many else ()),
            _number(device),
            _name(device),
            _percent(100 * min(1.0, device.sampled_seconds / length)),
            _percent(None if device.held_seconds is None else 100 * min(1.0, device.held_seconds / length)),
            _percent(device.gpu_percent),
            _peak(device),
            energy(device.energy_joules),
        )
    return table


def _number(device: DeviceSummary) -> str:
    """The beginning of the UUID where no sampler of now says which number the device has."""
    return device.uuid.removeprefix("GPU-")[:8] if device.index is None else str(device.index)


def _name(device: DeviceSummary) -> str:
    name = (device.name or device.uuid).removeprefix("NVIDIA ")
    return name.removesuffix(" (simulated)")  # the headline says so


def _peak(device: DeviceSummary) -> str:
    used, total = device.memory_max_bytes, device.memory_total_bytes
    shown = "n/a" if used is None else f"{used / 2**30:.1f}"
    return f"{shown} GiB" if total is None else f"{shown}/{total / 2**30:.0f} GiB"


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0f} %"


def _empty(*columns: tuple[str, str]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header, justify in columns:
        table.add_column(header, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    return table


def _add(table: Any, *cells: str) -> None:
    from rich.text import Text

    table.add_row(*(Text(clean(cell)) for cell in cells))


def _notes(found: Summary, settings: Settings, url: str | None) -> Iterator[str]:
    if any(user.held_seconds for user in found.users):
        yield "a share counts as held in full; used is the utilization over time, shared out"
        yield "idle is the part of the held time in which nothing of theirs ran at all (0 %)"
    if url is not None:
        return
    try:
        scope = find(settings).scope
    except GpulabError:
        return
    if scope == "account":
        yield "leases of this account only; `sudo gpulab setup` makes them host-wide"


def _zone(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Z")


def _local(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")
