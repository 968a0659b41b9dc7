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

from gpulab.allocation.directory import LeaseDirectory, find
from gpulab.allocation.holders import is_alive, keeper
from gpulab.allocation.records import LEASE_NAME, MAX_FILE_BYTES, LeaseRecord, decode, encode
from gpulab.config import Settings
from gpulab.errors import GpulabError, LeaseDirectoryError, LeaseError

if sys.platform != "win32":
    import fcntl

__all__ = ["HeldLease", "LeaseRecord", "guard", "live", "live_leases", "passed_over", "sweep", "take"]

MAX_FILES_PER_OWNER = 256
"""A bound for each owner: one for all would let a flood of files hide the leases of others."""
GUARD_TIMEOUT = 5.0

_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK if sys.platform != "win32" else 0

_held_here: "weakref.WeakSet[HeldLease]" = weakref.WeakSet()


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
        """Whether nobody who shares the descriptor has given the lease up: then its name is gone."""
        try:
            return self.fd >= 0 and os.path.samestat(os.fstat(self.fd), os.stat(self.path))
        except OSError:
            return False

    def describe(self, *, pid: int) -> None:
        """Name the process that holds it from now on. Raises OSError, ValueError."""
        record = decode(os.pread(self.fd, MAX_FILE_BYTES, 0), self.id, os.getuid())
        if record is None:
            raise ValueError("the lease's own text cannot be read")
        content = encode(
            self.id,
            gpus=record.gpus,
            mode=record.mode,
            memory_bytes=record.memory_bytes,
            priority=record.priority,
            pid=pid,
            since=record.since,
        )
        os.pwrite(self.fd, content, 0)

    def annotate(self, *, kernel_id: str | None, notebook: str | None) -> None:
        """Note beside the lease what only its owner may read. Raises OSError."""
        path = os.path.join(self.directory.path, _note_name(self.id))
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600)
        except FileExistsError:
            fd = os.open(path, os.O_WRONLY | _OPEN)
        with os.fdopen(fd, "w") as file:
            status = os.fstat(fd)
            if status.st_uid != os.getuid() or status.st_mode & 0o077 or status.st_nlink != 1:
                raise PermissionError(f"{path} is not this account's own")  # somebody waits to read it
            file.truncate()
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
    found = (record for _, record in _examined(directory) if record is not None)
    return tuple(sorted(found, key=lambda record: (record.since, record.id)))


def passed_over(directory: LeaseDirectory) -> int:
    """How many names of the directory look like leases in use and are not: for `gpulab doctor`."""
    return sum(record is None for _, record in _examined(directory))


def _examined(directory: LeaseDirectory) -> Iterator[tuple[str, LeaseRecord | None]]:
    """Each name of a locked or odd file with its lease, or None if it is none."""
    seen: dict[int, int] = {}
    for name in directory.names("lease-"):
        match = LEASE_NAME.fullmatch(name)
        fd = _open_lease(directory, name) if match else None
        if match is None or fd is None:
            if match is None or os.path.lexists(os.path.join(directory.path, name)):
                yield name, None
            continue
        try:
            uid = os.fstat(fd).st_uid
            seen[uid] = seen.get(uid, 0) + 1
            if seen[uid] <= MAX_FILES_PER_OWNER and _is_locked(fd):
                record = decode(os.pread(fd, MAX_FILE_BYTES, 0), match.group(1), uid)
                yield name, None if record is None else _with_note(directory, record)
        finally:
            os.close(fd)


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
            content = encode(
                lease_id,
                gpus=gpus,
                mode=mode,
                memory_bytes=memory_bytes,
                priority=priority,
                pid=os.getpid(),
                since=time.time(),
            )
            os.pwrite(fd, content, 0)
            os.rename(temporary, os.path.join(directory.path, _lease_name(lease_id)))
        except BaseException:
            os.close(fd)
            raise
    except ValueError as error:
        raise LeaseError(f"The lease could not be written: {error}; ask for fewer.") from error
    except OSError as error:
        raise LeaseError(
            f"The lease could not be written in {directory.path} ({error.strerror}); "
            "run `gpulab doctor` to see what that directory lacks."
        ) from error
    return HeldLease(directory, lease_id, fd)


def sweep(directory: LeaseDirectory) -> None:
    """Remove this account's dead files. Call it under `guard`."""
    for name in directory.names("lease-") + directory.names(".new-"):
        fd = _open_lease(directory, name)
        if fd is None:
            continue
        try:
            if os.fstat(fd).st_uid == os.getuid() and not _is_kept(directory, fd, name):
                _remove(directory, name.rpartition("-")[2], name)
        finally:
            os.close(fd)
    for name in directory.names("note-"):
        lease_id = name.removeprefix("note-")
        if not os.path.lexists(os.path.join(directory.path, _lease_name(lease_id))):
            _remove(directory, lease_id)  # where it is another's, the sticky bit keeps it


def _is_kept(directory: LeaseDirectory, fd: int, name: str) -> bool:
    """Whether a process of this account keeps it; another account's lock on our dead file does not."""
    if not _is_locked(fd):
        return False
    match = LEASE_NAME.fullmatch(name)
    record = decode(os.pread(fd, MAX_FILE_BYTES, 0), match.group(1), os.getuid()) if match else None
    if record is None or is_alive(record) is not False:
        return True
    return keeper(record, os.path.join(directory.path, name)) is not None


def _lease_name(lease_id: str) -> str:
    return f"lease-{lease_id}"


def _note_name(lease_id: str) -> str:
    return f"note-{lease_id}"


def _open_lease(directory: LeaseDirectory, name: str) -> int | None:
    """Open a lease to look at it; None if it is gone, a link, or anything but a plain small file."""
    try:
        fd = os.open(os.path.join(directory.path, name), os.O_RDONLY | _OPEN)
    except OSError:
        return None
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE_BYTES:
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
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
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
