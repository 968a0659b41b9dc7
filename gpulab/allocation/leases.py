"""Leases: a file of the holder's own, locked with flock for as long as it is held.

The JSON inside describes and never decides: a lease lives while its lock is held, and the operating
system drops the lock however the holder ends. A guard lock, held for milliseconds, makes
check-and-take atomic. There is no daemon, and dead files count for nothing.
"""

import contextlib
import json
import os
import random
import stat
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpulab.allocation.directory import LeaseDirectory, account_name, find
from gpulab.config import Settings
from gpulab.errors import GpulabError, LeaseDirectoryError, LeaseError

if sys.platform != "win32":
    import fcntl

__all__ = ["HeldLease", "LeaseRecord", "guard", "live", "live_leases", "sweep", "take"]

MAX_FILE_BYTES = 4096
MAX_FILES_PER_OWNER = 256
GUARD_TIMEOUT = 5.0

_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK if sys.platform != "win32" else 0


_held_here: "weakref.WeakSet[HeldLease]" = weakref.WeakSet()


class LeaseRecord(NamedTuple):
    """What everybody may know of a lease; `kernel_id` and `notebook` only of one's own."""

    id: str
    gpus: tuple[str, ...]
    mode: str = "exclusive"
    """exclusive or shared"""
    memory_bytes: int | None = None
    priority: str = "normal"
    uid: int | None = None
    user: str | None = None
    pid: int | None = None
    """The holder in its own namespace; None if that is not ours."""
    since: float = 0.0
    """Seconds since the epoch."""
    container: bool = False
    """Whether the holder lives in another process namespace."""
    state: str = "active"
    kernel_id: str | None = None
    notebook: str | None = None


class HeldLease:
    """A lease that this process holds through an open, locked descriptor."""

    def __init__(self, directory: LeaseDirectory, lease_id: str, fd: int) -> None:
        self.directory = directory
        self.id = lease_id
        self.fd = fd
        _held_here.add(self)

    @property
    def path(self) -> str:
        return os.path.join(self.directory.path, _lease_name(self.id))

    def is_held(self) -> bool:
        """Whether nobody who shares the descriptor has given the lease up."""
        try:
            return self.fd >= 0 and os.fstat(self.fd).st_nlink > 0
        except OSError:
            return False

    def describe(self, **changes: Any) -> None:
        """Change what the lease says of itself, for example the pid once the kernel runs."""
        record = json.loads(os.pread(self.fd, MAX_FILE_BYTES, 0))
        _write(self.fd, {**record, **changes})

    def annotate(self, *, kernel_id: str | None, notebook: str | None) -> None:
        """Note beside the lease what only its owner may read."""
        path = os.path.join(self.directory.path, _note_name(self.id))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _OPEN, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump({"kernel_id": kernel_id, "notebook": notebook}, file)

    def give_up(self) -> None:
        """End the lease at once, also for those who share the descriptor. Twice is fine."""
        if self.fd < 0:
            return
        # First the name, then the lock: those who share the descriptor see it by the missing name.
        if self.is_held():
            _remove(self.directory, self.id)
        with contextlib.suppress(OSError):
            fcntl.flock(self.fd, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Let go of this process's descriptor only; the lease ends when the last holder has."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


@contextlib.contextmanager
def guard(directory: LeaseDirectory, timeout: float = GUARD_TIMEOUT) -> Iterator[None]:
    """Hold the directory's guard. Raises LeaseDirectoryError if somebody keeps it for `timeout` seconds."""
    fd = directory.open_guard()
    try:
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LeaseDirectoryError(_guard_is_held(fd, directory, timeout)) from None
                time.sleep(random.uniform(0.0005, 0.004))
        yield
    finally:
        os.close(fd)


def live(directory: LeaseDirectory) -> tuple[LeaseRecord, ...]:
    """Every lease that is held now, oldest first. Content that is not a lease is passed over."""
    records = []
    seen: dict[int, int] = {}
    for name in directory.names("lease-"):
        fd = _open_lease(directory, name)
        if fd is None:
            continue
        try:
            status = os.fstat(fd)
            seen[status.st_uid] = seen.get(status.st_uid, 0) + 1
            if seen[status.st_uid] <= MAX_FILES_PER_OWNER and _is_locked(fd):
                record = _read(fd, name, status.st_uid)
                if record is not None:
                    records.append(_with_note(directory, record))
        finally:
            os.close(fd)
    return tuple(sorted(records, key=lambda record: (record.since, record.id)))


def live_leases(settings: Settings) -> tuple[LeaseRecord, ...]:
    """`live` for those who only look: no lease where leases do not work. Never raises."""
    try:
        return live(find(settings))
    except (GpulabError, OSError):
        return ()


def take(
    directory: LeaseDirectory,
    *,
    gpus: tuple[str, ...],
    mode: str,
    memory_bytes: int | None,
    priority: str,
) -> HeldLease:
    """Write and lock a new lease. Call it under `guard`, after the check. Raises LeaseError."""
    lease_id = os.urandom(4).hex()
    temporary = os.path.join(directory.path, f".new-{lease_id}")
    try:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, 0o644)
        try:
            os.fchmod(fd, 0o644)  # whatever the umask: others must be able to test the lock
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            described = {"gpus": list(gpus), "mode": mode, "memory_bytes": memory_bytes, "priority": priority}
            _write(fd, {"version": 1, **described, **_holder(os.getpid()), "since": time.time()})
            os.rename(temporary, os.path.join(directory.path, _lease_name(lease_id)))
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        raise LeaseError(
            f"The lease could not be written in {directory.path} ({error.strerror}); "
            "run `gpulab doctor` to see what that directory lacks."
        ) from error
    return HeldLease(directory, lease_id, fd)


def sweep(directory: LeaseDirectory) -> None:
    """Remove this account's dead files. Call it under `guard`."""
    mine = os.getuid()
    for name in directory.names("lease-") + directory.names(".new-"):
        fd = _open_lease(directory, name)
        if fd is None:
            continue
        try:
            if os.fstat(fd).st_uid == mine and not _is_locked(fd):
                _remove(directory, name.rpartition("-")[2], name)
        finally:
            os.close(fd)


def _lease_name(lease_id: str) -> str:
    return f"lease-{lease_id}"


def _note_name(lease_id: str) -> str:
    return f"note-{lease_id}"


def _holder(pid: int) -> dict[str, Any]:
    return {"pid": pid, "pid_namespace": pid_namespace()}


def pid_namespace() -> int | None:
    """What tells apart two containers' process numbers."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def _write(fd: int, record: dict[str, Any]) -> None:
    # Padded to one size, so that a reader never sees the tail of a longer, earlier text.
    os.pwrite(fd, json.dumps(record, separators=(",", ":")).encode().ljust(1024), 0)


def _open_lease(directory: LeaseDirectory, name: str) -> int | None:
    """Open a lease to look at it; None if it is gone, a link, or anything but a plain small file."""
    try:
        fd = os.open(os.path.join(directory.path, name), os.O_RDONLY | _OPEN)
    except OSError:
        return None
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size <= MAX_FILE_BYTES:
        return fd
    os.close(fd)
    return None


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _read(fd: int, name: str, uid: int) -> LeaseRecord | None:
    try:
        content = json.loads(os.pread(fd, MAX_FILE_BYTES, 0))
        gpus = tuple(content["gpus"])
        memory, pid = content["memory_bytes"], content["pid"]
        container = content["pid_namespace"] != pid_namespace()
        well_formed = (
            all(isinstance(gpu, str) and len(gpu) < 100 for gpu in gpus)
            and content["mode"] in ("exclusive", "shared")
            and content["priority"] in ("low", "normal", "high")
            and isinstance(pid, int)
            and (memory is None or (isinstance(memory, int) and memory > 0))
        )
        since = float(content["since"])
    except (ValueError, KeyError, TypeError, OSError):
        return None
    if not well_formed:
        return None
    return LeaseRecord(
        id=name.removeprefix("lease-"),
        gpus=gpus,
        mode=content["mode"],
        memory_bytes=memory,
        priority=content["priority"],
        uid=uid,  # the file's owner, whatever the text says
        user=account_name(uid),
        pid=None if container else pid,
        since=since,
        container=container,
    )


def _with_note(directory: LeaseDirectory, record: LeaseRecord) -> LeaseRecord:
    if record.uid != os.getuid():
        return record
    try:
        fd = os.open(os.path.join(directory.path, _note_name(record.id)), os.O_RDONLY | _OPEN)
        with os.fdopen(fd) as file:
            if os.fstat(fd).st_uid != record.uid:
                return record
            note = json.loads(file.read(MAX_FILE_BYTES))
        return record._replace(kernel_id=note["kernel_id"], notebook=note["notebook"])
    except (OSError, ValueError, KeyError, TypeError):
        return record


def _remove(directory: LeaseDirectory, lease_id: str, name: str | None = None) -> None:
    for entry in (name or _lease_name(lease_id), _note_name(lease_id)):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory.path, entry))


def _guard_is_held(fd: int, directory: LeaseDirectory, timeout: float) -> str:
    """Name the process that keeps the guard, which /proc/locks knows."""
    holder = ""
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as locks:
        inode = f":{os.fstat(fd).st_ino}"
        for fields in (line.split() for line in locks):
            if "FLOCK" in fields and "->" not in fields and fields[-3].endswith(inode):
                holder = f" by process {fields[-4]}"
    return (
        f"The guard of {directory.path} has been held{holder} for {timeout:.0f} s; "
        "end that process, or try again."
    )


def _close_in_child() -> None:
    """A forked child may only close: kept descriptors outlive the holder, and unlocking ends the lease."""
    for held in list(_held_here):
        held.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
