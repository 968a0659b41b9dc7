"""acquire(): snapshot, rank, lease, environment. The one room behind all doors to a GPU."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator

from gpulab import config
from gpulab.allocation import leases as lease_files
from gpulab.allocation.directory import find
from gpulab.allocation.grants import Lease, grant, ranking
from gpulab.allocation.policy import Request
from gpulab.config import Settings
from gpulab.errors import LeaseError
from gpulab.hardware.devices import Snapshot
from gpulab.hardware.observe import observe
from gpulab.hardware.owners import sees_host_processes
from gpulab.units import parse_bytes, parse_duration

__all__ = [
    "Lease",
    "acquire",
    "adopt",
    "attach",
    "cuda_loaded",
    "cuda_started",
    "current",
    "detach",
    "grant",
    "objections",
    "ranking",
]

_PATIENCE_SECONDS = 1.0
"""A thread that does not wait for a GPU still waits for another's single try."""

_current: Lease | None = None
_acquiring = threading.Lock()
objections: list[Callable[[], None]] = []
"""What else speaks against a lease for this process, as in a kernel that waits; each may raise LeaseError."""


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
    whole GPU all the same. `wait` is in seconds, None without limit: one stands in the queue meanwhile,
    and leaves it with Ctrl-C. Call it before CUDA starts.

    A process has one lease at a time. A second call is refused while the first lease lives, from any
    thread; where another thread is taking one just now, this call waits for its end, at most as long as
    `wait` says. After `release()` it may be called again. A forked child inherits neither lease nor
    ticket: it may call for its own once its parent's lease has ended. A child process works on its
    parent's lease, which `current()` returns and only the parent releases; `gpulab run` gives it another.

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
    from gpulab.allocation.waiting import wait_for_grant

    with _one_at_a_time(seconds):
        _refuse_second_start()
        lease = wait_for_grant(request, settings, _observer(request, settings), seconds)
        try:
            _note(lease, settings)
            attach(lease)
        except BaseException:  # also Ctrl-C: what the caller never got, nobody could give back
            _take_back(lease)
            raise
    return lease


@contextlib.contextmanager
def _one_at_a_time(seconds: float | None) -> Iterator[None]:
    """Keep the process's threads apart. Raises LeaseError if another one still waits after `seconds`."""
    lock = _acquiring
    if not lock.acquire(timeout=-1 if seconds is None else max(seconds, _PATIENCE_SECONDS)):
        raise LeaseError(
            "Another thread of this process is waiting for a GPU, and a process has one lease at a time; "
            "let that thread finish, and use the lease that gpulab.current() returns then."
        )
    try:
        yield
    finally:
        lock.release()


def attach(lease: Lease) -> None:
    """Make a lease this process's own: its environment, its limits, and what `current()` returns.

    Call it before CUDA starts; where a framework has started already, `gpulab.limits` says so.
    """
    from gpulab import limits

    kept = _without_former_limits()
    config.export({**dict.fromkeys(config.LEASE_VARIABLES), **lease.environment(environ=kept)})
    limits.apply(lease.memory_bytes, lease.total_bytes)
    _set_current(lease)


def _observer(request: Request, settings: Settings) -> Callable[[], Snapshot]:
    """How a waiting process looks: at first at the sampler's record, then at what is newer than a change."""
    ages = itertools.chain([2.0], itertools.repeat(0.0))
    return lambda: observe(max_age=next(ages), settings=settings, detail=request.detail)


def detach(lease: Lease) -> None:
    """After its release: this process sees no GPU any more."""
    if _current is lease:
        _set_current(None)
        _without_former_limits()
        empty = config.masked("", config.unruled())  # also while a file cannot be read
        config.export({**dict.fromkeys(config.LEASE_VARIABLES), **empty})


def _without_former_limits() -> dict[str, str]:
    """Take what gpulab set for the frameworks out of this process's environment; return what is left."""
    from gpulab import limits

    before = config.inherited()
    kept = limits.without_limits(before)
    config.export(dict.fromkeys(set(before) - set(kept)))
    return kept


def _take_back(lease: Lease) -> None:
    if lease.held is not None:
        lease.held.give_up()
    _set_current(lease)
    detach(lease)


def _note(lease: Lease, settings: Settings) -> None:
    """Note which kernel took it, for its owner's eyes; a lease without a note is none the worse."""
    if lease.held is not None and (settings.kernel_id or settings.notebook):
        with contextlib.suppress(OSError):
            lease.held.annotate(
                kernel_id=settings.kernel_id, notebook=settings.notebook, readable=settings.names == "full"
            )


def _refuse_second_start() -> None:
    for object_to in objections:
        object_to()
    held = current()
    if held is not None and held.held is None:
        raise LeaseError(
            f"This process works on lease {held.id} of its parent process; use the one that "
            "gpulab.current() returns, or start a process with a GPU of its own by `gpulab run`."
        )
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
    if _current is not None and _current.is_held():
        return _current
    settings = config.load()
    if _current is not None and _current.held is None and _lives(_current.id, settings):
        return _current
    return adopt(settings)


def _lives(lease_id: str, settings: Settings) -> bool:
    return any(record.id == lease_id for record in lease_files.live_leases(settings))


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


def cuda_started(gpus: tuple[str, ...] | None) -> bool | None:
    """Whether this process computes on a GPU: it has opened CUDA's device file, or NVML names it.

    NVML is asked only about `gpus`, through the sampler's record; None leaves it out. The answer is
    None if NVML does not say who uses them, and this process may: it has loaded the driver's library.
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
    return None if not told and cuda_loaded() else False


def cuda_loaded() -> bool:
    """Whether the driver's library is in this process; where it is not, CUDA cannot have started."""
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return any("/libcuda.so" in line for line in maps)
    return False  # no /proc: not a system with CUDA


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
    """A forked child holds nothing: claims.py has closed its descriptors. Nobody acquires in it yet."""
    global _acquiring  # noqa: PLW0603 - another thread of the parent may have held it
    _acquiring = threading.Lock()
    if _current is not None and _current.held is not None:
        _set_current(None)
        config.export({"GPULAB_LEASE_FD": None})


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
