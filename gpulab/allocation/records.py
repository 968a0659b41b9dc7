"""What the text of a lease file says. It may be anybody's: what does not fit to the letter is no lease."""

import json
import math
import os
import re
import time
from typing import Any, NamedTuple

from gpulab.allocation.directory import account_name

__all__ = [
    "LEASE_NAME",
    "MAX_FILE_BYTES",
    "LeaseRecord",
    "decode",
    "encode",
    "pid_namespace",
    "start_time",
    "stat_field",
]

LEASE_NAME = re.compile(r"lease-([0-9a-f]{8})")
MAX_FILE_BYTES = 4096
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,90}")
_MAX_GPUS = 64
_MAX_PID = 2**22
_CLOCK_SLACK = 86400.0


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
    pid_started: int | None = None
    """When that process started, in ticks since boot: a later process of the same number is not it."""
    since: float = 0.0
    """Seconds since the epoch."""
    container: bool = False
    """Whether the holder lives in another process namespace."""
    state: str = "active"
    kernel_id: str | None = None
    notebook: str | None = None


def encode(
    lease_id: str,
    *,
    gpus: tuple[str, ...],
    mode: str,
    memory_bytes: int | None,
    priority: str,
    pid: int,
    since: float,
) -> bytes:
    """The text of a lease, of one length always, so that nobody reads the tail of a longer, earlier one.

    Raises ValueError if it does not fit.
    """
    text = {
        "version": 1,
        "id": lease_id,
        "gpus": list(gpus),
        "mode": mode,
        "memory_bytes": memory_bytes,
        "priority": priority,
        "pid": pid,
        "pid_started": start_time(pid),
        "pid_namespace": pid_namespace(),
        "since": since,
    }
    encoded = json.dumps(text, separators=(",", ":")).encode()
    if len(encoded) > MAX_FILE_BYTES or len(gpus) > _MAX_GPUS:
        raise ValueError("too many GPUs for one lease")
    return encoded.ljust(MAX_FILE_BYTES)


def decode(content: bytes, lease_id: str, uid: int) -> LeaseRecord | None:
    """Read a lease of this name and file owner; None if the text is anything else. Never raises."""
    try:
        text = json.loads(content)
        return _checked(text, lease_id, uid) if isinstance(text, dict) else None
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def _checked(text: dict[str, Any], lease_id: str, uid: int) -> LeaseRecord | None:
    gpus, memory, pid, since = text["gpus"], text["memory_bytes"], text["pid"], text["since"]
    started = text["pid_started"]
    fits = (
        text["id"] == lease_id  # a second name for somebody's file is no second lease
        and isinstance(gpus, list)
        and 0 < len(gpus) <= _MAX_GPUS
        and all(isinstance(gpu, str) and _UUID.fullmatch(gpu) for gpu in gpus)
        and text["mode"] in ("exclusive", "shared")
        and text["priority"] in ("low", "normal", "high")
        and (memory is None or _is_integer(memory, 2**63))
        and _is_integer(pid, _MAX_PID + 1)
        and (started is None or _is_integer(started, 2**63))
        and isinstance(since, int | float)
        and math.isfinite(since)
        and 0 <= since <= time.time() + _CLOCK_SLACK
    )
    if not fits:
        return None
    container = text["pid_namespace"] != pid_namespace()
    return LeaseRecord(
        id=lease_id,
        gpus=tuple(gpus),
        mode=text["mode"],
        memory_bytes=memory,
        priority=text["priority"],
        uid=uid,  # the file's owner, whatever the text says
        user=account_name(uid),
        pid=None if container else pid,
        pid_started=None if container else started,
        since=float(since),
        container=container,
    )


def _is_integer(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < limit


def pid_namespace() -> int | None:
    """What tells apart two containers' process numbers."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def start_time(pid: int) -> int | None:
    """When a process started, in ticks since boot; None if there is none that we can see."""
    return stat_field(pid, 19)


def stat_field(pid: int, place: int) -> int | None:
    """A number of /proc/PID/stat, counted after the command's name; None if we cannot see the process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[place])
    except (OSError, ValueError, IndexError):
        return None
