"""For `gpulab doctor`: whether the administrator's rules can be kept, and an account's own have effect."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gpulab import config
from gpulab.commands.finding import Finding
from gpulab.config import Settings
from gpulab.hardware.devices import Device, Snapshot

__all__ = ["check_rules"]


def check_rules(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    """Rules that name what is not there, contradict each other, or do nothing."""
    found = [*_priority(settings), *_sizes(settings), *_idle(settings)]
    if snapshot.driver.ok:
        found += [*_devices(snapshot, settings), *_drained(snapshot.devices, settings)]
    for sentence in config.overruled():
        found.append(Finding("settings", "note", f"your own {sentence}"))
    if not found and os.path.exists(config.ADMIN_FILE):
        found.append(Finding("rules", "ok", f"{config.ADMIN_FILE} is root's own and understood"))
    yield from found


def _devices(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    if settings.devices is None:
        return
    lost = [entry for entry in settings.devices if not _named(entry, snapshot.devices)]
    if lost and snapshot.simulated and len(lost) == len(settings.devices):
        message = "devices names none of this simulated machine's, so all of them are handed out"
        yield Finding("rules", "note", message)
    elif len(lost) == len(settings.devices):
        message = "devices names no device of this machine, so none is handed out; correct it."
        yield Finding("rules", "fail", message)
    elif lost:
        yield Finding("rules", "note", f"devices names {', '.join(lost)}, of which this machine has none")


def _drained(devices: tuple[Device, ...], settings: Settings) -> Iterator[Finding]:
    lost = [entry for entry in settings.drained if not _named(entry, devices)]
    if lost:
        names = ", ".join(lost)
        message = (
            f"drained names {names}, of which this machine has none now; `gpulab undrain` removes a UUID"
        )
        yield Finding("rules", "note", message)


def _named(entry: str, devices: tuple[Device, ...]) -> bool:
    return any((device.uuid or "").lower().startswith(entry.lower()) for device in devices)


def _priority(settings: Settings) -> Iterator[Finding]:
    group = settings.who_may_raise_priority
    if group is None:
        return
    import grp

    try:
        grp.getgrnam(group)
    except KeyError:
        message = (
            f"who_may_raise_priority names the group {group!r}, which this machine does not know, "
            "so nobody but root may ask for priority high; make the group or correct the rule"
        )
        yield Finding("rules", "note", message)


def _sizes(settings: Settings) -> Iterator[Finding]:
    most, usual = settings.max_memory_per_lease, settings.default_memory
    if most is not None and usual is not None and usual > most:
        message = "default_memory is more than max_memory_per_lease, which holds; correct one of them"
        yield Finding("rules", "note", message)


def _idle(settings: Settings) -> Iterator[Finding]:
    if settings.on_idle != "nothing" and settings.idle_after is None and settings.max_lease_age is None:
        message = f"on_idle is {settings.on_idle}, but without idle_after or max_lease_age nobody is idle"
        yield Finding("rules", "note", message)
