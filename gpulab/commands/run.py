"""`gpulab run`: take a GPU and become the command, so that the lease ends with it."""

from __future__ import annotations

import argparse
import errno
import gc
import os
import signal
import sys

from gpulab import config
from gpulab.allocation.grants import Lease, grant, ranking
from gpulab.allocation.policy import Request
from gpulab.config import POLICIES, Settings
from gpulab.errors import NoFreeGpuError, NoGpuError, RequestError
from gpulab.hardware import nvml
from gpulab.hardware.devices import Snapshot
from gpulab.units import parse_bytes, parse_duration

__all__ = ["add_arguments", "run"]

_REMEDIES = {
    errno.EACCES: "check its permissions",
    errno.ENOEXEC: "a script needs a first line such as #!/bin/sh, or its interpreter before its name",
    errno.E2BIG: "pass fewer or shorter arguments",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gpulab run`."""
    parser.usage = "gpulab run [options] -- COMMAND [ARGS]"
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="how many (default 1)")
    parser.add_argument("--memory", metavar="SIZE", help="a share of a GPU, such as 8GiB")
    parser.add_argument("--exclusive", action="store_true", help="the whole GPU, also with --memory")
    parser.add_argument(
        "--policy",
        metavar="NAME",
        help=f"which GPU first: {', '.join(POLICIES)}, uuid:PREFIX or name:TEXT",
    )
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
    if not command or not command[0]:
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

    if args.explain:
        _explain(request, settings)
    try:
        lease = _take(request, settings, seconds)
    except (NoGpuError, NoFreeGpuError) as error:
        if not args.allow_cpu:
            raise type(error)(f"{error} (--allow-cpu runs the command without a GPU.)") from None
        _tell(f"{error} Running on the CPU (--allow-cpu).")
        return _become(command, {**config.without_lease(), **config.masked("", settings)})
    return _become(command, _environment(lease))


def _take(request: Request, settings: Settings, seconds: float | None) -> Lease:
    snapshot = _look(request, settings)
    try:
        return grant(request, snapshot, settings)
    except NoFreeGpuError as error:
        if seconds is not None and seconds <= 0:
            raise
        reason = str(error)
    gc.enable()  # it may be hours
    from gpulab.commands import queueing

    return queueing.wait(
        request, settings, lambda: _look(request, settings), snapshot=snapshot, reason=reason, seconds=seconds
    )


def _look(request: Request, settings: Settings) -> Snapshot:
    return nvml.snapshot(detail=request.detail, settings=settings)


def _environment(lease: Lease) -> dict[str, str]:
    from gpulab import limits

    outer = limits.without_limits(config.without_lease())
    environment = {**outer, **lease.environment(environ=outer)}
    if lease.held is not None:
        os.set_inheritable(lease.held.fd, True)
        environment["GPULAB_LEASE_FD"] = str(lease.held.fd)
    return environment


def _become(command: list[str], environment: dict[str, str]) -> int:
    """Replace this process by the command; return 126 or 127, as env(1) does, only if that fails."""
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and an ignored signal outlives exec
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - no shell between the lease and COMMAND
    except FileNotFoundError:
        _tell(f"{command[0]} was not found; check its name and PATH.")
        return 127
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "see that it runs without gpulab")
        _tell(f"{command[0]} cannot be run ({error.strerror}); {remedy}.")
        return 126


def _explain(request: Request, settings: Settings) -> None:
    from gpulab.allocation.leases import live_leases
    from gpulab.allocation.policy import explain

    leases = live_leases(settings)
    candidates = ranking(request.applied(settings), _look(request, settings), leases, settings)
    print("\n".join(explain(candidates)), file=sys.stderr)


def _tell(message: str) -> None:
    print(f"gpulab: {message}", file=sys.stderr, flush=True)
