"""Who keeps a claim alive: the processes that share its locked descriptor, wherever they came from."""

import contextlib
import json
import os
from typing import NamedTuple

from gpulab.allocation.records import MAX_FILE_BYTES, start_time, stat_field

__all__ = ["HEIR", "HOLDER", "SHARER", "Keeper", "is_there", "keepers", "since"]

HOLDER = "holder"
"""The process that the claim's text names."""
HEIR = "heir"
"""One that inherited the descriptor from the holder, and works in the lease's environment."""
SHARER = "sharer"
"""One that only shares it: the Jupyter server, or the program, that started the holder."""

_MAX_ANCESTORS = 64


class Keeper(NamedTuple):
    """A process that shares the locked descriptor, as we see it (its number is one of our namespace)."""

    pid: int
    started: int
    """When it started, in ticks since boot, so that a later process of that number is another."""
    command: str
    role: str
    is_kernel: bool = False
    of_lease: bool = False
    """Whether it was started in the lease's environment."""

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})"


def keepers(fd: int, claim_id: str) -> tuple[Keeper, ...]:
    """The claim owner's processes that share the lock on the open file `fd`; the holder first.

    The text of a claim may name any process. So only who has this very lock open counts, and only
    as the account that owns the file.
    """
    target = os.fstat(fd)
    named = _named(fd)
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid() and _shares_lock(name, target):
            keeper = _seen(int(name), target.st_uid, claim_id, named)
            found += [] if keeper is None else [keeper]
    return tuple(sorted(_judged(found), key=lambda k: (k.role != HOLDER, k.role != HEIR, k.pid)))


def is_there(keeper: Keeper) -> bool:
    """Whether the very process still exists."""
    return start_time(keeper.pid) == keeper.started


def since(fd: int) -> float:
    """When the claim was taken, as its text says, in seconds since the epoch; 0 if it does not say."""
    found = _text(fd).get("since")
    with contextlib.suppress(OverflowError):
        return float(found) if isinstance(found, int | float) else 0.0
    return 0.0


def _text(fd: int) -> dict[str, object]:
    try:
        text = json.loads(os.pread(fd, MAX_FILE_BYTES, 0))
        return text if isinstance(text, dict) else {}
    except (ValueError, RecursionError, OSError):
        return {}


def _named(fd: int) -> tuple[object, object]:
    """The holder's number and its namespace, as it wrote them itself; in a container, numbers of there."""
    text = _text(fd)
    return text.get("pid"), text.get("pid_namespace")


def _seen(pid: int, owner: int, claim_id: str, named: tuple[object, object]) -> Keeper | None:
    started, status = start_time(pid), _status(pid)
    if started is None or status.get("Uid", "-1").split()[0] != str(owner):
        return None
    inner = int(status.get("NSpid", str(pid)).split()[-1])
    environment = _environment(pid)
    of_lease = claim_id.encode() in (environment.get(b"GPULAB_LEASE"), environment.get(b"GPULAB_TICKET"))
    # A command that a notebook starts inherits its session's name, but gets the lease's environment.
    is_kernel = b"GPULAB_KERNEL_ID" in environment or (b"JPY_SESSION_NAME" in environment and not of_lease)
    role = HOLDER if (inner, _namespace(pid)) == named else HEIR if of_lease else SHARER
    return Keeper(pid, started, status.get("Name", "unknown"), role, is_kernel, of_lease)


def _judged(found: list[Keeper]) -> list[Keeper]:
    """Descendants of the holder are heirs, whatever their environment says.

    A Jupyter server takes the lease itself, and its text names the kernel a moment later: until then
    the one that it names shares the lock with a process of the lease's environment, and is not of it.
    """
    serves = any(keeper.of_lease and keeper.role == HEIR for keeper in found)
    found = [k._replace(role=SHARER) if k.role == HOLDER and serves and not k.of_lease else k for k in found]
    holders = {keeper.pid for keeper in found if keeper.role == HOLDER}
    return [
        keeper._replace(role=HEIR) if keeper.role == SHARER and _descends(keeper.pid, holders) else keeper
        for keeper in found
    ]


def _descends(pid: int, from_: set[int]) -> bool:
    for _ in range(_MAX_ANCESTORS if from_ else 0):
        pid = stat_field(pid, 1) or 0  # its parent
        if pid in from_ or pid <= 1:
            break
    return pid in from_


def _shares_lock(pid: str, target: os.stat_result) -> bool:
    """Whether it has the open file that the lock is on; to have opened the same file itself is not that."""
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(entry.path), target) and _is_locked_open(pid, entry.name):
                    return True
    return False


def _is_locked_open(pid: str, number: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{number}", "rb") as file:
        return any(line.startswith(b"lock:") and b"WRITE" in line for line in file)


def _status(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            pairs = (line.partition(":") for line in file)
            return {
                key: "".join(c for c in value.strip() if c.isprintable() or c == "\t")
                for key, _, value in pairs
            }
    except OSError:
        return {}


def _environment(pid: int) -> dict[bytes, bytes]:
    """What the process was started with; empty if we may not know."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if b"=" in entry)
    except OSError:
        return {}


def _namespace(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return None
