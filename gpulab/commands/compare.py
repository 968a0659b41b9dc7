"""`gpulab compare`: one workload or all, as a table, JSON, an HTML page or a saved result."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from gpulab.compare import DEFAULT_BUDGET
from gpulab.errors import RequestError, WorkloadError

if TYPE_CHECKING:
    from gpulab.compare.result import Result

__all__ = ["add_arguments", "run"]

INTERRUPTED, DISAGREE = 130, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gpulab compare`."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a workload, or all; --list names them")
    parser.add_argument("--list", action="store_true", help="the workloads and what each teaches")
    parser.add_argument("--sizes", metavar="N,N", help="for example 1e3,1e4 (default: the workload's own)")
    parser.add_argument("--backends", metavar="NAME,NAME", help="default: all of the workload")
    parser.add_argument(
        "--budget",
        type=float,
        default=DEFAULT_BUDGET,
        metavar="SECONDS",
        help="for measuring; starting the libraries comes on top (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the data (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object and nothing else")
    parser.add_argument("--html", metavar="FILE", help="write a page with table and figure")
    parser.add_argument("--save", metavar="FILE", help="write the result; gpulab.compare.load reads it")


def run(args: argparse.Namespace) -> int:
    """Compare and print. Ends with 1 if two sides disagree, 130 after an interrupt. Raises GpulabError."""
    from gpulab.compare.workload import find_workload, workload_names

    if args.list:
        return _list(as_json=args.json)
    if args.name is None:
        raise RequestError(f"Name a workload or all; there are: {', '.join(workload_names())}.")
    names = workload_names() if args.name == "all" else (find_workload(args.name).name,)
    if args.name == "all" and args.save:
        raise RequestError("--save keeps one result; name one workload, or use --json for all.")
    _check_writable(args.html, args.save)
    return _finish([_compare(name, args, len(names)) for name in names], args)


def _compare(name: str, args: argparse.Namespace, shares: int) -> Result:
    from gpulab.compare import compare

    return compare(
        name,
        args.sizes,
        backends=args.backends,
        budget=args.budget / shares,
        seed=args.seed,
        progress=not args.json,
    )


def _finish(results: list[Result], args: argparse.Namespace) -> int:
    """Print first: a file that cannot be written must not cost the measurement."""
    if args.json:
        _print_json(results, alone=args.name != "all")
    else:
        print("\n\n".join(str(result.table()) for result in results), flush=True)
    if args.save:
        results[0].save(args.save)
    if args.html:
        _write_page(results, args.html)
    if any(result.interrupted for result in results):
        return INTERRUPTED
    checks = (check for result in results for run in result.runs for check in run.parity)
    return DISAGREE if any(check.state == "different" for check in checks) else 0


def _write_page(results: list[Result], path: str) -> None:
    from gpulab.compare.results.page import to_html

    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(to_html(results))
    except OSError as error:
        raise WorkloadError(
            f"The page {path} cannot be written ({error.strerror}); name another place with --html."
        ) from error


def _print_json(results: list[Result], *, alone: bool) -> None:
    if alone:
        json.dump(results[0].to_dict(), sys.stdout, allow_nan=False)
    else:
        record = {"schema": "gpulab.comparisons/1", "results": [result.to_dict() for result in results]}
        json.dump(record, sys.stdout, allow_nan=False)
    print()


def _list(*, as_json: bool) -> int:
    from gpulab.compare.workload import find_workload, workload_names

    entries = []
    for workload in map(find_workload, workload_names()):
        backends = [backend.name for backend in workload.backends]
        entries.append({"name": workload.name, "teaches": workload.teaches, "backends": backends})
    if as_json:
        print(json.dumps({"schema": "gpulab.workloads/1", "workloads": entries}))
        return 0
    for entry in entries:
        print(f"{entry['name']}: {entry['teaches']}\n    backends: {', '.join(entry['backends'])}")
    return 0


def _check_writable(*paths: str | None) -> None:
    """Before the measurement, not after it."""
    for path in paths:
        folder = os.path.dirname(path) if path else ""
        if path and not (os.access(folder or ".", os.W_OK) and not os.path.isdir(path)):
            raise RequestError(f"{path} cannot be written; name a file in a folder of yours.")
