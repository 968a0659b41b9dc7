"""Claims: a file of the holder's own, locked with flock for as long as it is held.

A claim is a lease, or a ticket that waits to become one. The JSON inside describes and never decides:
a claim lives while its lock is held, and the operating system drops the lock however the holder ends.
There is no daemon, and dead files count for nothing.
"""

import contextlib
import os
import stat
import sys
import time
import weakref
from collections.abc import Iterator

from gpulab.allocation.directory import LeaseDirectory
from gpulab.allocation.naming import named
from gpulab.allocation.notes import read_note, remove_note
from gpulab.allocation.records import CLAIM_NAME, MAX_FILE_BYTES, WAITING, LeaseRecord, decode, encode
from gpulab.errors import LeaseError

if sys.platform != "win32":
    import fcntl

__all__ = [
    "ANSWER_SECONDS",
    "MAX_FILES_PER_OWNER",
    "HeldClaim",
    "claim_name",
    "examined",
    "is_held_here",
    "is_locked",
    "open_claim",
    "read_record",
    "remove",
    "write_claim",
]

MAX_FILES_PER_OWNER = 256
"""A bound for each owner and kind: one for all would let a flood of files hide the claims of others."""
ANSWER_SECONDS = 5.0
"""A ticket that was not touched for so long is passed over until it is touched again."""

_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK if sys.platform != "win32" else 0

_held_here: "weakref.WeakSet[HeldClaim]" = weakref.WeakSet()


class HeldClaim:
    """A claim that this process holds through an open, locked descriptor."""

    kind = "lease"

    def __init__(self, directory: LeaseDirectory, claim_id: str, fd: int) -> None:
        self.directory = directory
        self.id = claim_id
        self.fd = fd
        _held_here.add(self)

    @property
    def path(self) -> str:
        return os.path.join(self.directory.path, claim_name(self.kind, self.id))

    def is_held(self) -> bool:
        """Whether nobody who shares the descriptor has given it up, or made it another kind."""
        try:
            return self.fd >= 0 and os.path.samestat(os.fstat(self.fd), os.stat(self.path))
        except OSError:
            return False

    def record(self) -> LeaseRecord:
        """What its text says. Raises OSError, ValueError."""
        record = read_record(self.fd, self.kind, self.id, os.getuid())
        if record is None:
            raise ValueError(f"the {self.kind}'s own text cannot be read")
        return record

    def rewrite(self, record: LeaseRecord) -> None:
        """Change what its text says. Raises OSError, and ValueError if it does not fit."""
        os.pwrite(self.fd, encode(record), 0)

    def give_up(self) -> None:
        """End it at once, also for those who share the descriptor. Twice is fine."""
        if self.fd < 0:
            return
        # First the name, then the lock: those who share the descriptor see it by the missing name.
        if self.is_held():
            remove(self.directory, claim_name(self.kind, self.id), self.id)
        with contextlib.suppress(OSError):
            fcntl.flock(self.fd, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Let go of this process's descriptor only; the claim ends when the last holder has."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


def claim_name(kind: str, claim_id: str) -> str:
    """The file name of a lease or ticket."""
    return f"{kind}-{claim_id}"


def write_claim(directory: LeaseDirectory, kind: str, record: LeaseRecord) -> int:
    """Write and lock the file of a new claim; return its descriptor. Raises LeaseError."""
    temporary = os.path.join(directory.path, f".new-{record.id}")
    try:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before others may open it, and take the lock
            os.pwrite(fd, encode(record), 0)
            os.fchmod(fd, 0o644)  # whatever the umask: others must be able to test the lock
            os.rename(temporary, os.path.join(directory.path, claim_name(kind, record.id)))
        except BaseException:
            os.close(fd)
            raise
    except ValueError as error:
        raise LeaseError(f"The {kind} could not be written: {error}; ask for fewer.") from error
    except OSError as error:
        raise LeaseError(
            f"The {kind} could not be written in {directory.path} ({error.strerror}); "
            "run `gpulab doctor` to see what that directory lacks."
        ) from error
    return fd


def examined(
    directory: LeaseDirectory, kinds: tuple[str, ...] = ("ticket", "lease"), names: str | None = None
) -> Iterator[tuple[str, LeaseRecord | None]]:
    """Each name of a locked or odd file with its claim, or None if it is none.

    `names` is the administrator's rule on what others may know of a holder.
    """
    # Tickets are listed first: one that becomes a lease meanwhile is then listed under one name or both,
    # never under none. Leases are opened first, and the file counts once, whoever else uses its id.
    tickets = directory.names("ticket-") if "ticket" in kinds else []
    leases = directory.names("lease-") if "lease" in kinds else []
    seen = _Seen()
    for name in leases + tickets:
        yield from _examine(directory, name, seen, names)
        if name in tickets and "lease" in kinds and not os.path.lexists(os.path.join(directory.path, name)):
            yield from _examine(directory, name.replace("ticket", "lease", 1), seen, names)


class _Seen:
    """Which claims have been found, and how many files of each owner were looked at."""

    def __init__(self) -> None:
        self._claims: set[tuple[int, int]] = set()
        self._owners: dict[tuple[int, str], int] = {}

    def may_look(self, status: os.stat_result, kind: str) -> bool:
        """Whether the owner of this file has not had its share of attention; notes that it was looked at."""
        owner = (status.st_uid, kind)
        self._owners[owner] = self._owners.get(owner, 0) + 1
        return self._owners[owner] <= MAX_FILES_PER_OWNER

    def is_new(self, status: os.stat_result) -> bool:
        """Whether the claim in this file was not found yet, under an earlier name of it."""
        file = (status.st_dev, status.st_ino)
        if file in self._claims:
            return False
        self._claims.add(file)
        return True


def _examine(
    directory: LeaseDirectory, name: str, seen: _Seen, names: str | None
) -> Iterator[tuple[str, LeaseRecord | None]]:
    match = CLAIM_NAME.fullmatch(name)
    fd = open_claim(directory, name) if match else None
    if match is None or fd is None:
        if os.path.lexists(os.path.join(directory.path, name)):
            yield name, None
        return
    try:
        status = os.fstat(fd)
        if not (seen.may_look(status, match[1]) and is_locked(fd)):
            return
        record = read_record(fd, match[1], match[2], status.st_uid)
        if record is None or seen.is_new(status):
            yield name, None if record is None else named(read_note(directory, record, names), names)
    finally:
        os.close(fd)


def read_record(fd: int, kind: str, claim_id: str, uid: int) -> LeaseRecord | None:
    """The claim in an open file; twice, because its holder may be writing just now."""
    waits = kind == "ticket"
    for _ in range(2):
        record = decode(os.pread(fd, MAX_FILE_BYTES, 0), claim_id, uid, waits=waits)
        if record is not None and waits:
            touched = os.fstat(fd).st_mtime
            return record._replace(answers=abs(time.time() - touched) <= ANSWER_SECONDS, state=WAITING)
        if record is not None:
            return record
    return None


def open_claim(directory: LeaseDirectory, name: str) -> int | None:
    """Open a claim to look at it; None if it is gone, a link, or anything but a plain small file."""
    try:
        fd = os.open(os.path.join(directory.path, name), os.O_RDONLY | _OPEN)
    except OSError:
        return None
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE_BYTES:
        return fd
    os.close(fd)
    return None


def is_held_here(fd: int) -> bool:
    """Whether this process holds the claim in an open file, as a Jupyter server does for its kernels."""
    target = os.fstat(fd)
    for held in list(_held_here):
        with contextlib.suppress(OSError):
            if held.fd >= 0 and os.path.samestat(os.fstat(held.fd), target):
                return True
    return False


def is_locked(fd: int) -> bool:
    """Whether some open file holds its lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def remove(directory: LeaseDirectory, name: str, claim_id: str) -> None:
    """Remove a claim's file, and the note beside it."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(directory.path, name))
    remove_note(directory, claim_id)


def _close_in_child() -> None:
    """A forked child may only close: kept descriptors outlive the holder, and unlocking ends the claim."""
    for held in list(_held_here):
        held.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
