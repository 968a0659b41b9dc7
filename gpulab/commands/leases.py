"""`gpulab leases`: who holds what and who waits, without asking the driver.

Where that cannot be known it is an error, unlike in `gpulab status`: one sentence on stderr, 125 for
the lease directory or 64 for the configuration, and nothing on stdout.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from gpulab import config
from gpulab.allocation.directory import find
from gpulab.allocation.leases import live
from gpulab.allocation.records import LeaseRecord
from gpulab.allocation.status import leases_report
from gpulab.config import Settings
from gpulab.hardware import pausing
from gpulab.hardware.record import latest
from gpulab.units import format_bytes, format_duration

__all__ = ["add_arguments", "holding_lines", "owner", "queue_lines", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gpulab leases`."""
    parser.epilog = (
        "Exit code 125 if the lease directory cannot be used, 64 if the configuration cannot be read: with "
        "one sentence on stderr and nothing on stdout, also with --json."
    )
    parser.add_argument("--json", action="store_true", help="one JSON object (gpulab.leases/1)")


def run(args: argparse.Namespace) -> int:
    """Print the live leases, oldest first, then the queue. Raises LeaseDirectoryError, ConfigError."""
    settings = config.load()
    directory = find(settings)
    leases = live(directory, settings.names)
    report = leases_report(leases, settings)
    if args.json:
        print(json.dumps(report))
        return 0
    places = _places(settings)
    for lease, entry in zip(leases, report["leases"], strict=True):
        _print_lease(lease, entry, places)
    if not leases:
        print("No GPU is leased.")
    for line in queue_lines(report["waiting"]):
        print(line)
    for note in _notes(settings, directory.scope, unnumbered=bool(leases) and not places):
        print(f"({note})")
    return 0


def queue_lines(entries: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Who waits for what, from the report's entries, in the order in which they are served."""
    for entry in entries:
        share = f"{format_bytes(entry['memory_bytes'])} of a GPU"
        many = "1 GPU" if entry["gpus"] == 1 else f"{entry['gpus']} GPUs"
        what = share if entry["mode"] == "shared" else many
        priority = "" if entry["priority"] == "normal" else f", priority {entry['priority']}"
        since = datetime.fromisoformat(entry["since"]).timestamp()
        waited = format_duration(max(0.0, time.time() - since))
        silent = "" if entry["answers"] else "; does not answer, so it is passed over"
        yield f"waiting, place {entry['position']}: {owner(entry)}, {what}{priority}, for {waited}{silent}"


def holding_lines(entries: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Who has what, from the report's entries, where no driver tells the GPUs' numbers."""
    for entry in entries:
        share = f"{format_bytes(entry['memory_bytes'])} of " if entry["mode"] == "shared" else ""
        process = f" (process {entry['pid']})" if entry["pid"] else ""
        held = format_duration(max(0.0, time.time() - datetime.fromisoformat(entry["since"]).timestamp()))
        yield f"leased: {share}{', '.join(entry['gpus'])} by {owner(entry)}{process}, for {held}"


def owner(entry: dict[str, Any]) -> str:
    """The owner of a claim, as far as the administrator lets it be told."""
    return str(entry["user"] or f"uid {entry['uid']}")


def _print_lease(lease: LeaseRecord, entry: dict[str, Any], places: dict[str, int]) -> None:
    share = format_bytes(lease.memory_bytes) if lease.mode == "shared" else "exclusive"
    held = format_duration(max(0.0, time.time() - lease.since))
    where = entry["notebook"] or (f"process {entry['pid']}" if entry["pid"] else "in a container")
    state = "" if entry["state"] == "active" else f"  {entry['state']}"
    print(f"{lease.id}  {lease.who}  {share}  for {held}  {where}{state}")
    for uuid in lease.gpus:
        print(f"          {f'GPU {places[uuid]}  ' if uuid in places else ''}{uuid}")


def _places(settings: Settings) -> dict[str, int]:
    """The GPUs' numbers as the sampler last saw them: they do not change while the driver is loaded."""
    record = latest(settings)
    devices = () if record is None else record.devices
    return {device.uuid: device.index for device in devices if device.uuid is not None}


def _notes(settings: Settings, scope: str, *, unnumbered: bool) -> Iterator[str]:
    if settings.simulate is not None:
        yield "simulated machine, no real GPU"
    if unnumbered and pausing.paused(settings) is not None:
        yield "during a pause the GPUs are known by their UUIDs only"
    elif unnumbered:
        yield "no sampler has noted the GPUs' numbers; `gpulab status` asks the driver for them"
    if scope == "account":
        yield "leases of this account only; `sudo gpulab setup` makes them host-wide"
