"""`gpulab status`: every device, what it does and who has it.

What is wrong with the hardware or the lease directory is part of the answer, with exit code 0; a
configuration that cannot be read is one sentence on stderr, with 64 and nothing on stdout.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from gpulab import config
from gpulab.allocation.directory import find
from gpulab.allocation.leases import live_leases
from gpulab.allocation.status import status, unlisted
from gpulab.commands.leases import holding_lines, owner, queue_lines
from gpulab.config import Settings
from gpulab.errors import GpulabError, RequestError
from gpulab.hardware import nvml, scenario
from gpulab.units import format_bytes, parse_duration

__all__ = ["add_arguments", "holder", "run", "scope", "trouble", "versions"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gpulab status`."""
    parser.epilog = (
        "Exit code 0 also where there is no GPU or no lease directory, because that is an answer; 64, with "
        "one sentence on stderr and nothing on stdout, if the configuration cannot be read."
    )
    parser.add_argument("--json", action="store_true", help="one JSON object (gpulab.status/1)")
    parser.add_argument(
        "--watch",
        nargs="?",
        const="2",
        metavar="SECONDS",
        help="stay on this terminal, and show it again every 2 SECONDS; Ctrl-C ends it",
    )


def run(args: argparse.Namespace) -> int:
    """Print the status; 0 also where there is no GPU, because that is an answer."""
    settings = config.load()
    if settings.simulate is not None:
        scenario.load(settings.simulate)  # a machine that does not exist has no status
    if args.watch is not None:
        if args.json:
            raise RequestError("--watch does not go with --json; repeat `gpulab status --json` instead.")
        from gpulab.commands.watching import watch

        return watch(settings, max(0.5, parse_duration(args.watch)))
    report = status(nvml.snapshot(detail="full", settings=settings), live_leases(settings), settings)
    if args.json:
        print(json.dumps(report))
    else:
        _print(report, settings)
    return 0


def _print(report: dict[str, Any], settings: Settings) -> None:
    from rich.console import Console

    Console(highlight=False).print(_page(report, settings))


def _page(report: dict[str, Any], settings: Settings) -> Any:
    from rich.console import Group
    from rich.text import Text

    nvml_state = report["nvml"]
    parts: list[Any] = [Text(_headline(report), style="bold")]
    if nvml_state["state"] != "ok":
        parts.append(Text(nvml_state["message"], style="yellow"))
    sentence, known = scope(report, settings)
    parts.append(Text(sentence, style="dim" if known else "yellow"))
    if report["devices"]:
        parts.append(_table(report))
    elif report["leases"]:  # as in a pause: those who hold a GPU hold it still
        parts += [Text(line) for line in holding_lines(report["leases"])]
    parts += [Text(line) for line in queue_lines(report["waiting"] or ())]
    parts += [Text(trouble(device), style="yellow") for device in report["devices"] if device["message"]]
    return Group(*parts)


def _headline(report: dict[str, Any]) -> str:
    simulated = ["simulated machine"] if report["simulated"] else []
    state = report["nvml"]["state"]
    many = f"{len(report['devices'])} devices" if state == "ok" or report["devices"] else f"GPUs: {state}"
    return " · ".join([report["host"], many, *versions(report), *simulated])


def versions(report: dict[str, Any]) -> list[str]:
    """Of the driver and of CUDA, as far as they are known."""
    told = (("driver", report["nvml"]["driver"]), ("CUDA", report["nvml"]["cuda"]))
    return [f"{name} {version}" for name, version in told if version]


def trouble(device: dict[str, Any]) -> str:
    """What is wrong with a device, and which one it is."""
    message = str(device["message"])
    return message if message.startswith(f"GPU {device['index']} ") else f"GPU {device['index']}: {message}"


def scope(report: dict[str, Any], settings: Settings) -> tuple[str, bool]:
    """Whose leases these are, in a sentence; and whether it can be told at all."""
    if report["lease_scope"] == "host":
        return f"leases of all accounts of this host, in {report['lease_dir']}", True
    if report["lease_scope"] == "account":
        return "leases of this account only; `sudo gpulab setup` makes them host-wide", True
    try:
        find(settings)
        reason = "`gpulab doctor` says why."
    except GpulabError as error:
        reason = str(error)
    return f"Who holds what is unknown: {reason}", False


def _table(report: dict[str, Any]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header, justify in (("GPU", "right"), ("name", "left"), ("busy", "right"), ("memory", "right")):
        table.add_column(header, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("°C", justify="right")
    table.add_column("W", justify="right")
    table.add_column("holder (process)", overflow="fold")
    leases = None if _unknown(report) else {lease["id"]: lease for lease in report["leases"]}
    for device in report["devices"]:
        cells = [*_figures(device), holder(device, leases)]
        table.add_row(*(Text(cell) for cell in cells), style="dim" if not device["visible"] else None)
    return table


def _unknown(report: dict[str, Any]) -> bool:
    """Whether nobody knows who holds what: then nothing may look free."""
    return report["lease_scope"] is None or report["leases"] is None


def _figures(device: dict[str, Any]) -> list[str]:
    def shown(value: float | None, unit: str = "") -> str:
        return "n/a" if value is None else f"{value:.0f}{unit}"

    memory = device["memory"]
    used, total = (
        None if size is None else size / 2**30 for size in (memory["used_bytes"], memory["total_bytes"])
    )
    name = (device["name"] or "n/a").removeprefix("NVIDIA ")
    return [
        str(device["index"]) if device["kind"] == "gpu" else f"{device['index']}·mig",
        name if len(name) <= 28 else name[:27] + "…",
        shown(device["utilization"]["gpu_percent"], " %"),
        f"{'n/a' if used is None else f'{used:.1f}'}/{shown(total)} GiB",
        shown(device["temperature_celsius"]),
        shown(device["power_watts"]),
    ]


def holder(device: dict[str, Any], leases: dict[str, Any] | None) -> str:
    """Who has the device, in a few words; `leases` is None where they are unknown."""
    if device["state"] != "ok":
        return str(device["state"])
    who = [_holding(leases[name]) for name in device["leases"] or () if leases and name in leases]
    strangers = [p for p in device["processes"] or () if p["type"] == "compute" and p["lease"] is None]
    standing = "lease unknown" if leases is None else "no lease"
    who += [
        f"{p['user'] or '?'}: {p['command'] or p['pid']}, {standing}" for p in strangers[: 0 if who else 2]
    ]
    if who:
        return ", ".join(who)
    if device["drained"]:
        return "out of service"
    if unlisted(device):
        return "in use, by whom is not listed"
    return "unknown" if device["processes"] is None or leases is None else "free"


def _holding(lease: dict[str, Any]) -> str:
    share = f" {format_bytes(lease['memory_bytes'])}" if lease["mode"] == "shared" else ""
    pid = f" ({lease['pid']})" if lease["pid"] else ""
    state = "" if lease["state"] == "active" else f", {lease['state']}"
    return f"{owner(lease)}{share}{pid}{state}"
