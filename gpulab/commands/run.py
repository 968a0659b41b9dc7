"""`gpulab run`: take a GPU and become the command, so that the lease ends with it."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from typing import NoReturn

from gpulab import config
from gpulab.allocation.policy import Request, rank
from gpulab.allocation.session import Lease, wait_for_grant
from gpulab.config import POLICIES, Settings
from gpulab.errors import NoFreeGpuError, NoGpuError, RequestError
from gpulab.hardware import nvml
from gpulab.hardware.devices import Snapshot
from gpulab.units import parse_bytes, parse_duration

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gpulab run`."""
    parser.usage = "gpulab run [options] -- COMMAND [ARGS]"
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="how many (default 1)")
    parser.add_argument("--memory", metavar="SIZE", help="a share of a GPU, such as 8GiB")
    parser.add_argument("--exclusive", action="store_true", help="the whole GPU, also with --memory")
    parser.add_argument("--policy", metavar="NAME", help=f"which GPU first: {', '.join(POLICIES)}")
    parser.add_argument("--priority", choices=("low", "normal", "high"), default="normal")
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument("--wait", metavar="SECONDS", help="give up after that time (default: never)")
    waiting.add_argument("--no-wait", action="store_true", help="exit with 75 if no GPU is free now")
    parser.add_argument("--allow-cpu", action="store_true", help="run without a GPU rather than fail")
    parser.add_argument("--explain", action="store_true", help="print each GPU's place and reason first")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Take the GPU and exec COMMAND; return only if that fails."""
    gc.disable()  # this process becomes COMMAND in a tenth of a second; what it collected would be nothing
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise RequestError("There is no command to run; write `gpulab run -- COMMAND`.")
    settings = config.load()
    request = Request(
        gpus=args.gpus,
        memory_bytes=None if args.memory is None else parse_bytes(args.memory),
        exclusive=args.exclusive,
        policy=args.policy or settings.policy,
        priority=args.priority,
    ).checked()
    seconds = 0.0 if args.no_wait else None if args.wait is None else parse_duration(args.wait)

    def look() -> Snapshot:
        snapshot = nvml.snapshot(detail="choice", settings=settings)
        if args.explain:
            _explain(snapshot, request, settings)
        return snapshot

    try:
        lease = wait_for_grant(request, settings, look, seconds, tell=_tell)
    except (NoGpuError, NoFreeGpuError) as error:
        if not args.allow_cpu:
            raise
        _tell(f"{error} Running on the CPU (--allow-cpu).")
        _become(command, {**config.without_lease(), "CUDA_VISIBLE_DEVICES": ""})
    _become(command, _environment(lease))


def _environment(lease: Lease) -> dict[str, str]:
    environment = {**config.without_lease(), **lease.environment()}
    if lease.held is not None:
        os.set_inheritable(lease.held.fd, True)
        environment["GPULAB_LEASE_FD"] = str(lease.held.fd)
    return environment


def _become(command: list[str], environment: dict[str, str]) -> NoReturn:
    """Replace this process by the command; 126 and 127 mean what they mean to env(1)."""
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - no shell between the lease and COMMAND
    except FileNotFoundError:
        _tell(f"{command[0]} was not found; check its name and PATH.")
        raise SystemExit(127) from None
    except OSError as error:
        _tell(f"{command[0]} cannot be run ({error.strerror}); check its permissions.")
        raise SystemExit(126) from None


def _explain(snapshot: Snapshot, request: Request, settings: Settings) -> None:
    from gpulab.allocation.leases import live_leases

    for place, candidate in enumerate(rank(snapshot, live_leases(settings), request, settings.drained), 1):
        device = candidate.device
        print(f"{place:>2}. GPU {device.index} {device.name}: {candidate.reason}", file=sys.stderr)


def _tell(message: str) -> None:
    print(f"gpulab: {message}", file=sys.stderr, flush=True)
