"""What the text of a claim says: of a lease, or of a ticket that waits to become one.

It may be anybody's: what does not fit to the letter is no claim.
"""

import functools
import json
import os
import re
import time
from typing import Any, NamedTuple

from gpulab.allocation.directory import account_name

__all__ = [
    "CLAIM_NAME",
    "LEASE_NAME",
    "MAX_FILE_BYTES",
    "WAITING",
    "LeaseRecord",
    "decode",
    "encode",
    "pid_namespace",
    "start_time",
    "stat_field",
]

LEASE_NAME = re.compile(r"lease-([0-9a-f]{8})")
CLAIM_NAME = re.compile(r"(lease|ticket)-([0-9a-f]{8})")
WAITING = "waiting"
"""The state of a ticket."""
MAX_FILE_BYTES = 4096
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,90}")
_MAX_GPUS = 64
_MAX_PID = 2**22
_MAX_NUMBER = 2**53
_LAST_SECOND = 2.0**40


class LeaseRecord(NamedTuple):
    """What everybody may know of a claim; `kernel_id` and `notebook` only where the administrator lets them.

    A ticket is one whose `state` is "waiting": it has no `gpus` yet, but `number`, `count` and `within`.
    """

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
    number: int | None = None
    """A ticket's place among all that were ever drawn; None for a lease."""
    count: int = 1  # type: ignore[assignment]  # the name in the file; nobody counts a record's values
    """How many GPUs a ticket asks for."""
    within: tuple[str, ...] | None = None
    """The UUIDs that a ticket may be served from; None means any."""
    idle_since: float | None = None
    """Since when the holder does nothing on its GPU, in seconds since the epoch; None if it works."""
    policy: str | None = None
    """By which a ticket wants its devices chosen."""
    answers: bool = True
    """Whether the process behind a ticket has lately shown that it would take its turn."""
    alias: str | None = None
    """What its owner is called where the administrator does not let the login be told."""

    @property
    def waits(self) -> bool:
        return self.state == WAITING

    @property
    def who(self) -> str:
        """Its owner, for people."""
        return self.alias or self.user or f"uid {self.uid}"


def encode(record: LeaseRecord) -> bytes:
    """The text of a claim, of one length always, so that nobody reads the tail of a longer, earlier one.

    Raises ValueError if it does not fit.
    """
    text = {
        "version": 1,
        "id": record.id,
        "gpus": list(record.gpus),
        "mode": record.mode,
        "memory_bytes": record.memory_bytes,
        "priority": record.priority,
        "pid": record.pid,
        "pid_started": start_time(record.pid or 0),
        "pid_namespace": pid_namespace(),
        "since": record.since,
        "number": record.number,
        "count": record.count,
        "within": None if record.within is None else list(record.within),
        "idle_since": record.idle_since,
        "policy": record.policy,
    }
    encoded = json.dumps(text, separators=(",", ":")).encode()
    if len(encoded) > MAX_FILE_BYTES or len(record.gpus) > _MAX_GPUS:
        raise ValueError("too many GPUs for one lease")
    return encoded.ljust(MAX_FILE_BYTES)


def decode(content: bytes, claim_id: str, uid: int, *, waits: bool = False) -> LeaseRecord | None:
    """Read a claim of this name and file owner; None if the text is anything else. Never raises.

    Whether it waits is told by the file's name, which changes in one step. So the text may be ahead
    of the name for an instant: what it says of the other kind counts for nothing.
    """
    try:
        text = json.loads(content)
        record = _checked(text, claim_id, uid) if isinstance(text, dict) else None
        if record is None:
            return None
        return _as_ticket(record, text) if waits else _as_lease(record, text)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def _checked(text: dict[str, Any], claim_id: str, uid: int) -> LeaseRecord | None:
    """What leases and tickets have in common."""
    memory, pid, since, started = text["memory_bytes"], text["pid"], text["since"], text["pid_started"]
    fits = (
        text["id"] == claim_id  # a second name for somebody's file is no second claim
        and text["mode"] in ("exclusive", "shared")
        and text["priority"] in ("low", "normal", "high")
        and (memory is None or _is_integer(memory, 2**63))
        and (text["mode"] == "exclusive" or memory is not None)
        and _is_integer(pid, _MAX_PID + 1)
        and (started is None or _is_integer(started, 2**63))
        and _is_time(since)
    )
    if not fits:
        return None
    container = text["pid_namespace"] != pid_namespace()
    return LeaseRecord(
        id=claim_id,
        gpus=(),
        mode=text["mode"],
        memory_bytes=memory,
        priority=text["priority"],
        uid=uid,  # the file's owner, whatever the text says
        user=_login(uid),
        pid=None if container else pid,
        pid_started=None if container else started,
        since=_past(since),
        container=container,
    )


def _as_lease(record: LeaseRecord, text: dict[str, Any]) -> LeaseRecord | None:
    gpus, idle_since = text["gpus"], text.get("idle_since")
    if not gpus or not _are_uuids(gpus) or not (idle_since is None or _is_time(idle_since)):
        return None
    return record._replace(
        gpus=tuple(gpus), count=len(gpus), idle_since=None if idle_since is None else _past(idle_since)
    )


def _as_ticket(record: LeaseRecord, text: dict[str, Any]) -> LeaseRecord | None:
    number, count, within, policy = text["number"], text["count"], text["within"], text.get("policy")
    fits = (
        _is_integer(number, _MAX_NUMBER)
        and _is_integer(count, _MAX_GPUS + 1)
        and (within is None or _are_uuids(within))
        and (policy is None or (isinstance(policy, str) and len(policy) <= 100 and policy.isprintable()))
    )
    if not fits:
        return None
    return record._replace(
        state=WAITING,
        number=number,
        count=count,
        within=None if within is None else tuple(within),
        policy=policy,
    )


@functools.lru_cache(256)
def _login(uid: int) -> str | None:
    """Remembered: where accounts come from a directory server each question is a journey."""
    return account_name(uid)


def _are_uuids(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _MAX_GPUS
        and all(isinstance(uuid, str) and _UUID.fullmatch(uuid) for uuid in value)
        and len(set(value)) == len(value)
    )


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LAST_SECOND


def _past(seconds: float) -> float:
    """Not ahead of our clock: where that was set back, what was written before is a claim all the same."""
    return min(float(seconds), time.time())


def _is_integer(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < limit


def pid_namespace() -> int | None:
    """What tells apart two containers' process numbers."""
    return _pid_namespace(os.getpid())


@functools.lru_cache(1)
def _pid_namespace(_pid: int) -> int | None:
    """Remembered for this process: only a child may begin in another one."""
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
