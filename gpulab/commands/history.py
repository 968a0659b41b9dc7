"""`gpulab history`: who held and used what, and what the GPUs did; or the samples themselves, for programs.

Without a history, or with one that cannot be read, it is one sentence on stderr with exit code 125; what
makes no sense (a range, an address) is one with 64. Nothing stands on stdout then.
"""

from __future__ import annotations

import argparse

from gpulab import config
from gpulab.commands import history_files, history_tables
from gpulab.config import Settings
from gpulab.errors import RequestError
from gpulab.hardware import scenario
from gpulab.telemetry.history import missing
from gpulab.telemetry.reading import summary
from gpulab.telemetry.reading.ranges import span
from gpulab.telemetry.reading.resolutions import RESOLUTIONS
from gpulab.telemetry.storing.schema import HistoryError

__all__ = ["add_arguments", "run"]

_STDOUT = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gpulab history`."""
    parser.epilog = (
        "TIME is a duration before now (90m, 24h, 7d), a date or an instant in ISO 8601, in local time if it "
        "names no zone. Samples are kept for a day, minutes for 30 days, hours for a year. Exit code 64 for "
        "a request that makes no sense, 125 without a history or if a file cannot be written."
    )
    parser.add_argument("--since", default="24h", metavar="TIME", help="where the range begins (24h)")
    parser.add_argument("--until", metavar="TIME", help="where it ends (now)")
    what = parser.add_mutually_exclusive_group()
    for name, text in (
        ("csv", "the samples as CSV"),
        ("json", "summary and samples as one object (gpulab.history/1)"),
    ):
        what.add_argument(
            f"--{name}", nargs="?", const=_STDOUT, metavar="FILE", help=f"{text}, on stdout or to FILE"
        )
    what.add_argument("--parquet", metavar="FILE", help="the samples as a Parquet file")
    parser.add_argument(
        "--resolution",
        choices=("auto", *RESOLUTIONS),
        default="auto",
        help="of the samples; auto is what fits the range's length",
    )
    parser.add_argument(
        "--prometheus",
        nargs="?",
        const="",
        metavar="URL",
        help="sum up all hosts that this Prometheus scrapes (default: the setting prometheus_url)",
    )


def run(args: argparse.Namespace) -> int:
    """Print or write what is asked for. Raises RequestError, HistoryError, PrometheusError."""
    settings = config.load()
    since, until = span(args.since, args.until)
    if args.prometheus is not None:
        return _of_all_hosts(args, settings, since, until)
    if settings.simulate is not None:
        scenario.load(settings.simulate)  # a machine that does not exist has no history
    trouble = missing(settings)
    if trouble is not None:
        raise HistoryError(trouble)
    if args.csv is not None:
        history_files.write_csv(args.csv, settings, since, until, args.resolution)
    elif args.parquet is not None:
        history_files.write_parquet(args.parquet, settings, since, until, args.resolution)
    else:
        found = summary.of_this_host(settings, since, until)
        if args.json is None:
            history_tables.show(found, settings)
        else:
            history_files.write_json(args.json, found, settings, args.resolution)
    return 0


def _of_all_hosts(args: argparse.Namespace, settings: Settings, since: float, until: float) -> int:
    from gpulab.telemetry.reading import hosts

    if args.csv is not None or args.parquet is not None:
        raise RequestError(
            "--prometheus sums up and has none of our samples; leave out --csv or --parquet, or use --json."
        )
    if args.resolution != "auto":
        raise RequestError("--prometheus sums up and lists no samples; leave out --resolution.")
    url = args.prometheus or settings.prometheus_url
    if not url:
        raise RequestError("Which Prometheus? Write --prometheus http://HOST:9090, or set prometheus_url.")
    found = hosts.of_all_hosts(url, since, until)
    if args.json is None:
        history_tables.show(found, settings, url=url)
    else:
        history_files.write_json(args.json, found, settings, None)
    return 0
