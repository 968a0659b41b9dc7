"""acquire(): snapshot, rank, lease, environment. The one room behind all doors to a GPU."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from types import TracebackType

from gpulab import config
from gpulab.allocation import leases as lease_files
from gpulab.allocation.directory import LeaseDirectory, find
from gpulab.allocation.policy import Candidate, Request, choose, rank
from gpulab.config import Settings
from gpulab.errors import LeaseError, NoFreeGpuError, NoGpuError
from gpulab.hardware.devices import Snapshot
from gpulab.hardware.mask import visible_uuids
from gpulab.hardware.observe import observe
from gpulab.hardware.owners import sees_host_processes
from gpulab.units import format_duration, parse_bytes, parse_duration

__all__ = ["Lease", "acquire", "adopt", "cuda_started", "current", "grant", "ranking", "wait_for_grant"]

_POLL_SECONDS = 1.0

_current: Lease | None = None
_acquiring = threading.Lock()


class Lease:
    """GPUs of one's own, until `release()` or the end of the process; also a context manager."""

    def __init__(self, record: lease_files.LeaseRecord, held: lease_files.HeldLease | None) -> None:
        self.id = record.id
        self.gpus = record.gpus
        """Full UUIDs."""
        self.mode = record.mode
        """exclusive or shared"""
        self.memory_bytes = record.memory_bytes
        """The share in bytes; None for a whole GPU without a cap."""
        self.since = record.since
        """Seconds since the epoch."""
        self.devices: str | None = None
        """The devices' names, for people; None if this process was not told."""
        self.reason: str | None = None
        """Why just these were chosen, for people."""
        self.held = held
        """The locked descriptor; None where a parent process holds the lease for this one."""
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<Lease {self.id}: {', '.join(self.gpus)} ({self.mode})>"

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def environment(self, settings: Settings | None = None) -> dict[str, str]:
        """What a process needs in its environment to use this lease and nothing else.

        `settings` are those the lease was taken with; without them, those of this process.
        """
        variables = {
            **config.masked(",".join(self.gpus), config.load() if settings is None else settings),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "GPULAB_LEASE": self.id,
        }
        if self.memory_bytes is not None:
            variables["GPULAB_MEMORY_LIMIT"] = str(self.memory_bytes)
        if self.devices and self.reason:
            variables.update(GPULAB_LEASE_DEVICES=self.devices, GPULAB_LEASE_REASON=self.reason)
        return variables

    def is_held(self) -> bool:
        """Whether the lease still lives."""
        return self.held is not None and self.held.is_held()

    def release(self) -> None:
        """Give the GPUs back. Twice is fine.

        Raises LeaseError if this is not the holder's process, or if it has started CUDA: then the
        GPU stays in use until the process ends, whatever gpulab says.
        """
        if self.held is None or os.getpid() != self._pid:
            raise LeaseError(
                f"Lease {self.id} belongs to another process (this one is {os.getpid()}); release it there."
            )
        using = cuda_started(self.gpus) if self.is_held() else False
        if using is not False:
            why = "is using its GPU" if using else "may be using its GPU (the driver does not say)"
            raise LeaseError(
                f"This process {why}, so the GPU cannot be given back while it lives; "
                "restart or shut down the kernel."
            )
        self.held.give_up()
        if _current is self:
            _set_current(None)
            empty = config.masked("", config.load())
            config.export({**dict.fromkeys(config.LEASE_VARIABLES), **empty})


def acquire(
    gpus: int = 1,
    *,
    memory: int | str | None = None,
    exclusive: bool = False,
    policy: str | None = None,
    wait: float | str | None = 0,
    priority: str = "normal",
) -> Lease:
    """Take GPUs for this process, and set its environment so that CUDA sees only them.

    `memory` (bytes, or text such as "8GiB") asks for a share of a GPU; with `exclusive` it is the
    whole GPU all the same. `wait` is in seconds, None without limit. Call it before CUDA starts.

    Raises RequestError, NoGpuError, NoFreeGpuError (after `wait`), LeaseDirectoryError, and
    LeaseError if this process already has a lease or CUDA has started.
    """
    settings = config.load()
    request = Request(
        gpus=gpus,
        memory_bytes=None if memory is None else parse_bytes(memory),
        exclusive=exclusive,
        policy=policy or settings.policy,
        priority=priority,
    ).checked()
    seconds = None if wait is None else parse_duration(wait)
    with _acquiring:
        _refuse_second_start()
        lease = wait_for_grant(request, settings, lambda: observe(settings=settings), seconds)
        _note(lease, settings)
        config.export({**dict.fromkeys(config.LEASE_VARIABLES), **lease.environment()})
        _set_current(lease)
    return lease


def _note(lease: Lease, settings: Settings) -> None:
    """Note which kernel took it, for its owner's eyes; a lease without a note is none the worse."""
    if lease.held is not None and (settings.kernel_id or settings.notebook):
        with contextlib.suppress(OSError):
            lease.held.annotate(kernel_id=settings.kernel_id, notebook=settings.notebook)


def _refuse_second_start() -> None:
    held = current()
    if held is not None:
        raise LeaseError(
            f"This process already holds lease {held.id}; release it first, "
            "or use the one that gpulab.current() returns."
        )
    if cuda_started(None):
        raise LeaseError(
            "CUDA has already started in this process, so a GPU taken now would not be used; "
            "restart the kernel and acquire first."
        )


def current() -> Lease | None:
    """The lease this process holds: from its kernel's start, `gpulab run`, or `acquire()`; or None."""
    if _current is not None and (_current.held is None or _current.is_held()):
        return _current
    return adopt(config.load())


def adopt(settings: Settings) -> Lease | None:
    """Take over the lease that the environment names; the first act of gpulab in a kernel.

    The inherited descriptor becomes close-on-exec and is closed in forked children: otherwise a
    background child of the kernel would keep the GPU after the kernel's end.
    """
    if settings.lease_id is None:
        return None
    record = next((r for r in lease_files.live_leases(settings) if r.id == settings.lease_id), None)
    if record is None:
        return None
    held = _inherited(settings, record.id)
    lease = Lease(record, held)
    lease.devices, lease.reason = settings.lease_devices, settings.lease_reason
    if held is not None:
        os.set_inheritable(held.fd, False)
    _set_current(lease)
    return lease


def grant(request: Request, snapshot: Snapshot, settings: Settings, *, prefer: tuple[str, ...] = ()) -> Lease:
    """Try once: rank what the snapshot shows against the leases of this instant, and take the best.

    Raises NoGpuError, NoFreeGpuError, LeaseDirectoryError or LeaseError.
    """
    request = request.checked()._replace(prefer=prefer)
    if not snapshot.driver.ok:
        raise NoGpuError(snapshot.driver.message)
    directory = find(settings)
    with lease_files.guard(directory):
        lease_files.sweep(directory)
        candidates = ranking(request, snapshot, lease_files.live(directory), settings)
        devices = choose(candidates, request)
        lease = _take(directory, request, tuple(device.uuid or "" for device in devices))
    chosen = [candidate for candidate in candidates if candidate.device in devices]
    lease.devices = ", ".join(candidate.device.name or "unnamed GPU" for candidate in chosen)
    lease.reason = "; ".join(candidate.reason for candidate in chosen)
    return lease


def ranking(
    request: Request, snapshot: Snapshot, leases: tuple[lease_files.LeaseRecord, ...], settings: Settings
) -> tuple[Candidate, ...]:
    """Every device with its place and reason, within the mask and the administrator's rules.

    Raises RequestError if the mask cannot be read.
    """
    mask = visible_uuids(snapshot.devices, settings.outer_devices, settings.device_order)
    return rank(snapshot, leases, request._replace(visible=mask), settings)


def wait_for_grant(
    request: Request,
    settings: Settings,
    look: Callable[[], Snapshot],
    seconds: float | None,
    tell: Callable[[str], None] | None = None,
) -> Lease:
    """`grant`, tried until it succeeds or `seconds` have passed (None: without limit)."""
    deadline = None if seconds is None else time.monotonic() + seconds
    told = False
    while True:
        try:
            return grant(request, look(), settings)
        except NoFreeGpuError as error:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                if seconds:
                    raise NoFreeGpuError(f"After {format_duration(seconds)} of waiting: {error}") from None
                raise
            if tell is not None and not told:
                limit = "" if seconds is None else f" up to {format_duration(seconds)}"
                tell(f"{error} Waiting{limit}; Ctrl-C stops it.")
                told = True
            pause = _POLL_SECONDS * random.uniform(0.5, 1.5)
            time.sleep(pause if left is None else min(pause, left))


def cuda_started(gpus: tuple[str, ...] | None) -> bool | None:
    """Whether this process computes on a GPU: it has opened CUDA's device file, or NVML names it.

    NVML is asked only about `gpus`, through the sampler's record; None leaves it out. The answer is
    None if NVML does not say who uses them.
    """
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(entry.path) == "/dev/nvidia-uvm":
                    return True
    if gpus is None:
        return False
    snapshot = observe()
    if not (snapshot.simulated or sees_host_processes()):
        return False  # a container: NVML's process numbers are the host's, and ours may be a stranger's
    devices = [device for device in snapshot.devices if device.uuid in gpus]
    if any(process.pid == os.getpid() for device in devices for process in device.processes or ()):
        return True
    told = len(devices) == len(gpus) and all(device.processes is not None for device in devices)
    return False if told else None


def _take(directory: LeaseDirectory, request: Request, gpus: tuple[str, ...]) -> Lease:
    held = lease_files.take(
        directory,
        gpus=gpus,
        mode=request.mode,
        memory_bytes=request.memory_bytes,
        priority=request.priority,
    )
    record = lease_files.LeaseRecord(held.id, gpus, request.mode, request.memory_bytes, since=time.time())
    return Lease(record, held)


def _inherited(settings: Settings, lease_id: str) -> lease_files.HeldLease | None:
    """The descriptor in GPULAB_LEASE_FD, if it really is that lease's file."""
    if settings.lease_fd is None:
        return None
    held = lease_files.HeldLease(find(settings), lease_id, settings.lease_fd)
    try:
        mine, named = os.fstat(held.fd), os.stat(held.path)
    except OSError:
        return None
    return held if (mine.st_dev, mine.st_ino) == (named.st_dev, named.st_ino) else None


def _set_current(lease: Lease | None) -> None:
    global _current  # noqa: PLW0603 - one lease per process, and this module is its home
    _current = lease


def _forget_in_child() -> None:
    """A forked child holds nothing: leases.py has closed its descriptors."""
    if _current is not None and _current.held is not None:
        _set_current(None)
        config.export({"GPULAB_LEASE_FD": None})


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
