"""`gpulab stop`: end a lease, or a request that waits, by ending its processes."""

from __future__ import annotations

import argparse
import os

from gpulab import config
from gpulab.allocation.claims import is_locked, open_claim, read_record
from gpulab.allocation.directory import LeaseDirectory, find
from gpulab.allocation.keepers import Keeper
from gpulab.allocation.records import CLAIM_NAME, LeaseRecord
from gpulab.allocation.stopping import GRACE_SECONDS, stop
from gpulab.errors import LeaseError, RequestError
from gpulab.units import format_duration, parse_duration

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gpulab stop`."""
    parser.add_argument(
        "lease", metavar="LEASE", help="its id or the beginning of it; also of a waiting request"
    )
    parser.add_argument(
        "--grace",
        default=GRACE_SECONDS,
        metavar="SECONDS",
        help="how long a kernel that was told, or a process that was asked, has to end (default 30)",
    )
    parser.epilog = "Exit code 0 when its GPUs are free, 1 if something still holds them, 64 for a wrong id."


def run(args: argparse.Namespace) -> int:
    """End it; returns 1 if something still holds it. Raises RequestError, LeaseError."""
    grace = parse_duration(args.grace)
    directory = find(config.load())
    record, fd = _claim(directory, args.lease)
    try:
        _check_owner(record)
        what = "Request" if record.waits else "Lease"
        _say(f"{what} {record.id} of {record.user or record.uid} is told to end")
        outcome = stop(
            directory,
            record.id,
            fd,
            sentence=_sentence(record, grace),
            grace=grace,
            tell=lambda line: _say(f"  {line}"),
        )
    except PermissionError as error:
        raise LeaseError(
            f"Its process may not be signalled from here ({error.strerror}); ask root to stop it."
        ) from error
    finally:
        os.close(fd)
    if outcome.ended:
        free = ", ".join(record.gpus)
        _say(f"{what} {record.id} has ended{f'; free: {free}' if free else ''}")
        return 0
    _say(f"{what} {record.id} is still held: {_who(record, outcome.keepers)}")
    return 1


def _claim(directory: LeaseDirectory, wanted: str) -> tuple[LeaseRecord, int]:
    """The one live claim whose id begins so, and its open file. Raises RequestError."""
    found: dict[str, tuple[LeaseRecord, int]] = {}
    for name in sorted(directory.names("lease-") + directory.names("ticket-")):
        match = CLAIM_NAME.fullmatch(name)
        if match is None or not match[2].startswith(wanted.lower()) or match[2] in found:
            continue
        fd = open_claim(directory, name)
        if fd is None:
            continue
        record = read_record(fd, match[1], match[2], os.fstat(fd).st_uid) if is_locked(fd) else None
        if record is None:
            os.close(fd)
        else:
            found[record.id] = (record, fd)
    if wanted and len(found) == 1:
        return next(iter(found.values()))
    for _, fd in found.values():
        os.close(fd)
    if found and wanted:
        raise RequestError(f"{wanted!r} begins {len(found)} ids ({', '.join(found)}); write more of it.")
    raise RequestError(
        f"No lease and no waiting request here has the id {wanted!r}; `gpulab leases` lists them."
    )


def _check_owner(record: LeaseRecord) -> None:
    if os.getuid() not in (0, record.uid):
        owner = record.user or f"user {record.uid}"
        what = "Place in the queue" if record.waits else "Lease"
        raise RequestError(f"{what} {record.id} belongs to {owner}; ask them, or root, to stop it.")


def _sentence(record: LeaseRecord, grace: float) -> str:
    who = "The administrator" if os.getuid() != record.uid else "`gpulab stop`"
    what = "place in the queue" if record.waits else "lease"
    return (
        f"{who} ends this kernel's {what}; save what you need: the kernel stops in {format_duration(grace)}."
    )


def _who(record: LeaseRecord, keepers: tuple[Keeper, ...]) -> str:
    if keepers:
        return f"{' and '.join(map(str, keepers))}; end that yourself."
    if record.container:
        return "its processes live in a container; run this in there, or as root on the host."
    return "by a process that this account cannot see; run it as root."


def _say(line: str) -> None:
    print(line, flush=True)
