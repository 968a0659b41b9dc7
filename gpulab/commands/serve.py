"""`gpulab serve`: the host's sampler, its history and its Prometheus metrics, in the foreground."""

from __future__ import annotations

import argparse
import logging
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpulab import config
from gpulab.config import Settings
from gpulab.telemetry.exporting.dcgm import HOST_LABELS
from gpulab.telemetry.exporting.endpoint import DEFAULT_PORT, Endpoint
from gpulab.telemetry.sampling.supervision import Supervision

if TYPE_CHECKING:
    from gpulab.telemetry.sampling.host_sampler import HostSampler

__all__ = ["add_arguments", "run"]

_ALIVE_SECONDS = 15.0
"""A sampler that has published nothing for so long hangs: calls to the driver are given up far sooner."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gpulab serve`."""
    parser.epilog = (
        "Ends with 0 at SIGTERM and Ctrl-C, 1 if another one serves already, 125 if it cannot publish or "
        "listen. Whoever reaches the port reads the metrics; holders are named as the rule `names` says."
    )
    parser.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, help="of the metrics; 0: any (%(default)s)"
    )
    parser.add_argument("--address", default="127.0.0.1", help="to listen at (%(default)s)")
    parser.add_argument("--no-metrics", action="store_true", help="sample and keep the history only")
    parser.add_argument(
        "--dcgm",
        nargs="?",
        const=HOST_LABELS[0],
        choices=HOST_LABELS,
        help="offer dcgm-exporter's names too; boards of its older versions want the label Hostname",
    )
    parser.add_argument("--host-name", metavar="NAME", help="what the label host says (this machine's name)")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal. Raises AlreadyServingError, LeaseDirectoryError, EndpointError, ConfigError."""
    from gpulab.telemetry.sampling.host_sampler import HostSampler

    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # systemd's journal adds the time
    settings = config.load()
    with HostSampler(settings) as sampler:
        endpoint = None if args.no_metrics else _endpoint(args, settings, sampler)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: sampler.stop.set())
        supervision = Supervision(_pulse(sampler))
        if endpoint is not None:
            endpoint.start()
        supervision.ready(_told(sampler, endpoint))
        try:
            sampler.run()
        finally:
            supervision.stopping()
            if endpoint is not None:
                endpoint.close()
    return 0


def _endpoint(args: argparse.Namespace, settings: Settings, sampler: HostSampler) -> Endpoint:
    from gpulab.telemetry import exporter

    collector = exporter.Collector(settings, newest=sampler.newest, host=args.host_name, dcgm=args.dcgm)
    metrics = exporter.registry(collector)
    return Endpoint(args.address, args.port, lambda accept: exporter.render(metrics, accept))


def _told(sampler: HostSampler, endpoint: Endpoint | None) -> str:
    """One line: for whom, from what, and where the metrics are."""
    whom = "of the whole host" if sampler.scope == "host" else "of this account (`sudo gpulab setup`: of all)"
    simulated = "" if sampler.settings.simulate is None else ", of a simulated machine"
    where = "no metrics" if endpoint is None else f"metrics at {endpoint.url}"
    line = f"gpulab serves the samplers and the history {whom}{simulated}; {where}."
    print(line, flush=True)
    return line


def _pulse(sampler: HostSampler) -> Callable[[], bool]:
    """Tells whether new samples come: also of a driver that hangs, whose calls are given up in time."""
    stamp: float | None = None
    changed = time.monotonic()

    def is_alive() -> bool:
        nonlocal stamp, changed
        newest = sampler.newest()
        if newest is not None and newest.time != stamp:
            stamp, changed = newest.time, time.monotonic()
        return time.monotonic() - changed < _ALIVE_SECONDS

    return is_alive


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"{text!r} is no port; write a number from 0 to 65535")
    return int(text)
