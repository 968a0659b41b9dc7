"""`gpulab run`: take a GPU and become the command, so that the lease ends with it."""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import os
import signal
import sys
import time

from gpulab import config
from gpulab.allocation.claims import claim_name, is_locked, open_claim
from gpulab.allocation.grants import Lease, grant, ranking
from gpulab.allocation.leases import HeldLease
from gpulab.allocation.policy import Request
from gpulab.config import POLICIES, Settings
from gpulab.errors import NoFreeGpuError, NoGpuError, RequestError
from gpulab.hardware import hosting, nvml
from gpulab.hardware.devices import Snapshot
from gpulab.units import parse_bytes, parse_duration

__all__ = ["add_arguments", "run"]

_SAMPLED_AFTER_SECONDS = 2.0
"""A command that ends sooner would leave a line or two of history, and a sampler that goes on for nothing."""
_GIVEN_UP_AFTER_SECONDS = 20

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
    environment = _environment(lease)
    _see_to_sampling(lease, settings)
    return _become(command, environment)


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


def _see_to_sampling(lease: Lease, settings: Settings) -> None:
    """Leave a process behind, no child of the command, that starts the sampler if the command stays."""
    if lease.held is None or os.getpid() == 1 or hosting.serving(settings):
        return  # process 1 is given everybody's orphans, so the command would have a child after all
    with contextlib.suppress(OSError):  # no process to be had, or a parent that ignores SIGCHLD
        child = os.fork()  # it has closed the lease's descriptor: see claims.py
        if child == 0:
            _in_child(lease.held, settings)
        os.waitpid(child, 0)


def _in_child(held: HeldLease, settings: Settings) -> None:
    """Let go of all that was inherited, before the command runs; then wait in a child of one's own."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        os.setsid()
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # that of the listing itself is closed
                os.dup2(nothing, descriptor) if descriptor < 3 else os.close(descriptor)
        if os.fork() == 0:
            signal.alarm(_GIVEN_UP_AFTER_SECONDS)
            time.sleep(_SAMPLED_AFTER_SECONDS)
            _start_sampler(held, settings)
    finally:
        os._exit(0)  # never into the caller's code, whatever happened


def _start_sampler(held: HeldLease, settings: Settings) -> None:
    fd = open_claim(held.directory, claim_name(held.kind, held.id))
    if fd is not None and is_locked(fd):
        from gpulab.telemetry.sampling.starting import ensure

        ensure(settings)


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
