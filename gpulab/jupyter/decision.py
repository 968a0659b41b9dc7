"""Decide what a starting kernel gets: a lease, a place in the queue, or the CPU and why. Never raises."""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from gpulab import config
from gpulab.allocation import leases, stopping, waiting
from gpulab.allocation.claims import claim_name
from gpulab.allocation.policy import Request
from gpulab.allocation.session import Lease, grant
from gpulab.allocation.tickets import HeldTicket
from gpulab.config import Settings
from gpulab.errors import GpulabError, NoFreeGpuError, RequestError
from gpulab.hardware.devices import Snapshot
from gpulab.hardware.observe import observe
from gpulab.units import parse_bytes

__all__ = ["Decision", "Options", "decide", "granted", "kernel_environment", "on_cpu", "renewed", "resume"]


class Options(NamedTuple):
    """What the kernelspec and the server's configuration ask for, not yet checked."""

    gpus: int = 1
    memory: str = ""
    """A size such as 8GiB; empty for a whole GPU."""
    exclusive: bool = False
    policy: str = ""
    """Empty for the policy of the settings."""

    def request(self, settings: Settings) -> Request:
        """Check the options. Raises RequestError."""
        try:
            memory = parse_bytes(self.memory) if self.memory else None
        except RequestError as error:
            raise RequestError(f"The memory of this kernel cannot be leased: {error}") from None
        return Request(
            gpus=self.gpus,
            memory_bytes=memory,
            exclusive=self.exclusive,
            policy=self.policy or settings.policy,
        ).applied(settings)


class Decision(NamedTuple):
    """A lease and no reason; or no lease, the reason, and perhaps a ticket."""

    lease: Lease | None
    reason: str | None
    variables: dict[str, str]
    """What the kernel's environment gets."""
    ticket: HeldTicket | None = None


def kernel_environment(environ: dict[str, str]) -> dict[str, str]:
    """Free a kernel's environment of what the server's own lease left there.

    A caller may pass only a part of the environment. What says where leases lie and which GPUs may
    be used at all is then taken from the server, so that kernel and server see the same machine.
    """
    bounds = {
        name: value
        for name, value in config.inherited().items()
        if name.startswith(("GPULAB_", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"))
    }
    return config.without_lease({**bounds, **environ})


def decide(
    options: Options, environ: dict[str, str], *, prefer: tuple[str, ...] = (), queue: bool = False
) -> Decision:
    """Try once to lease what the options ask for; with `queue` take a ticket where none is free now.

    Blocks for some milliseconds, at worst seconds, and never until a GPU is free.
    """
    settings = None
    try:
        settings = config.load(environ)
        return _granted_or_queued(options.request(settings), settings, environ, prefer=prefer, queue=queue)
    except Exception as error:  # noqa: BLE001 - whatever it is, the kernel must start
        return on_cpu(_told(error), settings)


def renewed(lease: Lease, environ: dict[str, str]) -> Decision:
    """For a restart with a lease that the kernel itself has taken when its turn had come."""
    try:
        settings = config.load(environ)
        return _with_lease(_named(lease, settings), settings, environ)
    except Exception as error:  # noqa: BLE001 - whatever it is, the kernel must start
        return on_cpu(_told(error))._replace(lease=lease)


def ended(claim: Lease | HeldTicket, environ: dict[str, str]) -> Decision | None:
    """For a restart after `gpulab stop`: lease or ticket ends, and the kernel asks for no other by itself."""
    held = claim.held if isinstance(claim, Lease) else claim
    sentence = None if held is None else stopping.stop_requested(held.directory, held.id, os.getuid())
    if sentence is None:
        return None
    asked = sentence.partition(";")[0].rstrip(".")  # what follows was to be done before the end
    reason = f"{asked}, so the kernel was started anew without a GPU; restart it to ask for one again."
    try:
        return on_cpu(reason, config.load(environ))
    except GpulabError:
        return on_cpu(reason)


def resume(ticket: HeldTicket, environ: dict[str, str]) -> Decision | None:
    """For a restart with a ticket: try it once, else pass it on with its number; None if it was given up."""
    settings = None
    try:
        settings = config.load(environ)
        if not ticket.is_held():
            return None
        without = ended(ticket, environ)
        if without is not None:
            ticket.give_up()
            return without
        request = ticket.request()

        def look() -> Snapshot:
            return observe(settings=settings, detail=request.detail)

        lease = waiting.attempt(ticket, request, settings, look)
        if lease is not None:
            return _with_lease(lease, settings, environ)
        reason = waiting.why_not(ticket) or "others wait before it."
    except Exception as error:  # noqa: BLE001 - whatever it is, the kernel must start
        reason = _told(error)
    return _with_ticket(ticket, reason, settings) if ticket.is_held() else None


def granted(ticket: HeldTicket) -> Lease | None:
    """The lease that a process sharing this ticket's descriptor has made of it, if one has."""
    for record in leases.live(ticket.directory):
        path = os.path.join(ticket.directory.path, claim_name("lease", record.id))
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(ticket.fd), os.stat(path)):
                fd, ticket.fd = ticket.fd, -1  # the same open file, under its new name
                return Lease(record, leases.HeldLease(ticket.directory, record.id, fd))
    return None


def _with_lease(lease: Lease, settings: Settings, environ: dict[str, str]) -> Decision:
    """What the user's kernelspec says of a framework's memory stays as it is."""
    return Decision(lease, None, lease.environment(settings, environ))


def _with_ticket(ticket: HeldTicket, reason: str, settings: Settings | None) -> Decision:
    without = on_cpu(reason, settings)
    return without._replace(ticket=ticket, variables={**without.variables, "GPULAB_TICKET": ticket.id})


def _named(lease: Lease, settings: Settings) -> Lease:
    """With what a kernel tells its user of its GPUs."""
    if lease.devices is None:
        snapshot = observe(settings=settings)
        found = [snapshot.device(uuid) for uuid in lease.gpus]
        lease.devices = ", ".join((device and device.name) or "unnamed GPU" for device in found)
        lease.reason = "it was this kernel's turn in the queue"
    return lease


def _told(error: Exception) -> str:
    if isinstance(error, GpulabError):
        return str(error)
    return f"gpulab could not take a GPU ({type(error).__name__}: {error}); `gpulab doctor` may say more."


def _granted_or_queued(
    request: Request, settings: Settings, environ: dict[str, str], *, prefer: tuple[str, ...], queue: bool
) -> Decision:
    try:
        return _with_lease(_grant(request, settings, prefer), settings, environ)
    except NoFreeGpuError as error:
        if not queue:
            raise
        ticket = waiting.enqueue(request, settings, observe(settings=settings))
        return _with_ticket(ticket, str(error), settings)


def _grant(request: Request, settings: Settings, prefer: tuple[str, ...]) -> Lease:
    snapshot = observe(settings=settings, detail=request.detail)
    try:
        return grant(request, snapshot, settings, prefer=prefer)
    except NoFreeGpuError:
        if snapshot.source != "sampler":
            raise
    # The record may still show the processes of a kernel that has just ended.
    newest = observe(max_age=0, settings=settings, detail=request.detail)
    return grant(request, newest, settings, prefer=prefer)


def on_cpu(reason: str, settings: Settings | None = None) -> Decision:
    """The decision for the CPU, with the sentence that the user will read."""
    sentence = " ".join(reason.replace("\0", "").split())
    variables = {"CUDA_VISIBLE_DEVICES": "", "GPULAB_NO_GPU_REASON": sentence}
    if settings is not None:
        variables.update(config.masked("", settings))
    return Decision(None, sentence, variables)
