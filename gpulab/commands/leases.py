"""`gpulab leases`: who holds what, without asking the driver.

Where that cannot be known it is an error, unlike in `gpulab status`: one sentence on stderr, 125 for
the lease directory or 64 for the configuration, and nothing on stdout.
"""

from __future__ import annotations

import argparse
import json
import time

from gpulab import config
from gpulab.allocation.directory import find
from gpulab.allocation.leases import live
from gpulab.allocation.status import lease_entry, leases_report
from gpulab.units import format_bytes, format_duration

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gpulab leases`."""
    parser.epilog = (
        "Exit code 125 if the lease directory cannot be used, 64 if the configuration cannot be read: with "
        "one sentence on stderr and nothing on stdout, also with --json."
    )
    parser.add_argument("--json", action="store_true", help="one JSON object (gpulab.leases/1)")


def run(args: argparse.Namespace) -> int:
    """Print the live leases, oldest first. Raises LeaseDirectoryError, ConfigError."""
    settings = config.load()
    directory = find(settings)
    leases = live(directory)
    if args.json:
        print(json.dumps(leases_report(leases, settings)))
        return 0
    for lease in leases:
        entry = lease_entry(lease, settings)
        share = format_bytes(lease.memory_bytes) if lease.mode == "shared" else "exclusive"
        held = format_duration(max(0.0, time.time() - lease.since))
        where = entry["notebook"] or (f"process {entry['pid']}" if entry["pid"] else "in a container")
        print(f"{lease.id}  {lease.user or lease.uid}  {share}  for {held}  {where}")
        for uuid in lease.gpus:
            print(f"          {uuid}")
    if not leases:
        print("No GPU is leased.")
    if directory.scope == "account":
        print("(leases of this account only; `sudo gpulab setup` makes them host-wide)")
    return 0
