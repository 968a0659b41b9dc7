"""Tidying: this account's dead claims, which count for nothing and only lie about."""

import contextlib
import os
from collections.abc import Iterable

from gpulab.allocation.claims import claim_name, is_held_here, is_locked, open_claim, read_record, remove
from gpulab.allocation.directory import LeaseDirectory
from gpulab.allocation.holders import is_alive, keeper
from gpulab.allocation.notes import remove_note
from gpulab.allocation.records import CLAIM_NAME, LeaseRecord

__all__ = ["sweep"]


def sweep(directory: LeaseDirectory, known: Iterable[LeaseRecord] = ()) -> bool:
    """Remove the dead files of this account; as root those of all. Call it under `guard`.

    `known` are claims that were just read and found locked. Whether one of them is gone now, because
    only another account's lock made it look alive.
    """
    alive = {
        claim_name("ticket" if record.waits else "lease", record.id)
        for record in known
        if os.getuid() not in (0, record.uid) or is_alive(record) is not False
    }
    locked = {claim_name("lease", record.id) for record in known}
    gone = [
        name
        for prefix in ("lease-", "ticket-", ".new-")
        for name in directory.names(prefix)
        if name not in alive and _sweep_file(directory, name)
    ]
    _sweep_beside(directory)
    return not locked.isdisjoint(gone)


def _sweep_beside(directory: LeaseDirectory) -> None:
    """What lies beside claims that are gone: notes, and requests to stop."""
    for name in directory.names("note-"):
        claim_id = name.removeprefix("note-")
        if not any(os.path.lexists(_path(directory, kind, claim_id)) for kind in ("lease", "ticket")):
            remove_note(directory, claim_id)
    for name in directory.names("stop-"):
        claim_id = name.split("-")[1]
        if not any(os.path.lexists(_path(directory, kind, claim_id)) for kind in ("lease", "ticket")):
            with contextlib.suppress(OSError):  # where it is another's, the sticky bit keeps it
                os.unlink(os.path.join(directory.path, name))


def _sweep_file(directory: LeaseDirectory, name: str) -> bool:
    """Whether it was dead and ours to remove."""
    fd = open_claim(directory, name)
    if fd is None:
        return False
    try:
        owner = os.fstat(fd).st_uid
        if os.getuid() not in (0, owner) or _is_kept(directory, fd, name, owner):
            return False
        remove(directory, name, name.rpartition("-")[2])
        return True
    finally:
        os.close(fd)


def _is_kept(directory: LeaseDirectory, fd: int, name: str, owner: int) -> bool:
    """Whether a process of its account keeps it; another account's lock on a dead file does not."""
    if not is_locked(fd):
        return False
    if is_held_here(fd):
        return True  # for a kernel that has died and will be restarted
    match = CLAIM_NAME.fullmatch(name)
    record = read_record(fd, match[1], match[2], owner) if match else None
    if record is None or is_alive(record) is not False:
        return True
    return keeper(record, os.path.join(directory.path, name)) is not None


def _path(directory: LeaseDirectory, kind: str, claim_id: str) -> str:
    return os.path.join(directory.path, claim_name(kind, claim_id))
