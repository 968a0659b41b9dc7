"""`gpulab status`: every device, what it does and who has it."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from gpulab import config
from gpulab.allocation.leases import live_leases
from gpulab.allocation.status import status
from gpulab.config import Settings
from gpulab.hardware import nvml
from gpulab.hardware.record import latest
from gpulab.units import format_bytes, parse_duration

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gpulab status`."""
    parser.add_argument("--json", action="store_true", help="one JSON object (gpulab.status/1)")
    parser.add_argument(
        "--watch", nargs="?", const="2", metavar="SECONDS", help="stay, and show it again every 2 SECONDS"
    )


def run(args: argparse.Namespace) -> int:
    """Print the status; 0 also where there is no GPU, because that is an answer."""
    settings = config.load()
    if args.watch is not None:
        return _watch(settings, max(0.5, parse_duration(args.watch)))
    report = status(nvml.snapshot(detail="full", settings=settings), live_leases(settings), settings)
    if args.json:
        print(json.dumps(report))
    else:
        _print(report)
    return 0


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console

    Console(highlight=False).print(_page(report))


def _watch(settings: Settings, period: float) -> int:
    """Show the sampler's record: what lives long does not ask NVML itself."""
    from rich.live import Live

    from gpulab.telemetry import sampler

    with Live(auto_refresh=False, screen=True) as live:
        while True:
            sampler.ensure(settings)
            sampler.touch(settings)
            snapshot = latest(settings, max_age=max(5.0, 3 * period))
            if snapshot is not None:
                live.update(_page(status(snapshot, live_leases(settings), settings)), refresh=True)
            time.sleep(period)


def _page(report: dict[str, Any]) -> Any:
    from rich.console import Group
    from rich.text import Text

    nvml_state = report["nvml"]
    parts: list[Any] = [Text(_headline(report), style="bold")]
    if nvml_state["state"] != "ok":
        parts.append(Text(nvml_state["message"], style="yellow"))
    parts.append(Text(_scope(report), style="dim"))
    if report["devices"]:
        parts.append(_table(report))
    parts += [
        Text(f"GPU {device['index']}: {device['message']}", style="yellow")
        for device in report["devices"]
        if device["message"]
    ]
    return Group(*parts)


def _headline(report: dict[str, Any]) -> str:
    versions = [
        f"{name} {report['nvml'][key]}"
        for name, key in (("driver", "driver"), ("CUDA", "cuda"))
        if report["nvml"][key]
    ]
    simulated = ["simulated machine"] if report["simulated"] else []
    return " · ".join([f"{report['host']}", f"{len(report['devices'])} devices", *versions, *simulated])


def _scope(report: dict[str, Any]) -> str:
    if report["lease_scope"] == "host":
        return f"leases of all accounts of this host, in {report['lease_dir']}"
    if report["lease_scope"] == "account":
        return "leases of this account only; `sudo gpulab setup` makes them host-wide"
    return "leases do not work here; `gpulab doctor` says why"


def _table(report: dict[str, Any]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header, justify in (("GPU", "right"), ("name", "left"), ("busy", "right"), ("memory", "right")):
        table.add_column(header, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("°C", justify="right")
    table.add_column("W", justify="right")
    table.add_column("holder (process)", overflow="fold")
    leases = {lease["id"]: lease for lease in report["leases"]}
    for device in report["devices"]:
        cells = [*_figures(device), holder(device, leases)]
        table.add_row(*(Text(cell) for cell in cells), style="dim" if not device["visible"] else None)
    return table


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


def holder(device: dict[str, Any], leases: dict[str, Any]) -> str:
    """Who has the device, in a few words."""
    if device["state"] != "ok":
        return str(device["state"])
    who = []
    for lease in (leases[lease_id] for lease_id in device["leases"] if lease_id in leases):
        share = f" {format_bytes(lease['memory_bytes'])}" if lease["mode"] == "shared" else ""
        pid = f" ({lease['pid']})" if lease["pid"] else ""
        who.append(f"{lease['user'] or lease['uid']}{share}{pid}")
    strangers = [p for p in device["processes"] or () if p["type"] == "compute" and p["lease"] is None]
    who += [f"{p['user'] or '?'}: {p['command'] or p['pid']}, no lease" for p in strangers[: 0 if who else 2]]
    if who:
        return ", ".join(who)
    if device["drained"]:
        return "out of service"
    return "unknown" if device["processes"] is None else "free"
