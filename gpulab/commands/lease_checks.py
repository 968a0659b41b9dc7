"""For `gpulab doctor`: whether the lease directory can hold leases, whom it reaches, and what lies in it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from gpulab.allocation.claims import MAX_FILES_PER_OWNER, examined
from gpulab.allocation.directory import LeaseDirectory, find
from gpulab.allocation.records import CLAIM_NAME, MAX_FILE_BYTES, pid_namespace
from gpulab.commands.finding import Finding, owner, shown
from gpulab.config import HOST_LEASE_DIR, Settings

__all__ = ["check_leases", "check_scope"]

_DOUBTFUL_FILE_SYSTEMS = ("nfs", "9p", "virtiofs", "fuse", "cifs", "smb", "lustre", "afs", "ceph")
_PRIVATE_PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - to be warned of
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""The inode that Linux gives the first namespace of processes: any other is a container's."""
_NAMED_FILES = 10


def check_leases(settings: Settings) -> Iterator[Finding]:
    """Locks, by trial, and files that are no leases."""
    directory = find(settings)
    os.close(directory.open_guard())
    if _locks_exclude(directory):
        yield Finding("leases", "ok", f"locks in {directory.path} exclude each other")
    else:
        message = f"locks in {directory.path} do not work; set GPULAB_LEASE_DIR to a local disk."
        yield Finding("leases", "fail", message)
    place = _Mount.of(directory.path, "self")
    if place is not None and place.kind.startswith(_DOUBTFUL_FILE_SYSTEMS):
        message = f"{directory.path} is on {place.kind}, where locks are often only pretended"
        yield Finding("leases", "note", message)
    odd = list(_odd_files(directory))
    if odd:
        files = "1 file" if len(odd) == 1 else f"{len(odd)} files"
        more = f" and {len(odd) - _NAMED_FILES} more" if len(odd) > _NAMED_FILES else ""
        message = (
            f"{files} in {directory.path} passed over, because they are no leases: "
            f"{'; '.join(odd[:_NAMED_FILES])}{more}; have them removed"
        )
        yield Finding("leases", "note", message)


def check_scope(settings: Settings) -> Iterator[Finding]:
    """Who sees these leases, and who does not although it looks so."""
    directory = find(settings)
    if directory.scope == "account":
        message = "leases of this account only: others neither see nor respect them; run `sudo gpulab setup`"
        yield Finding("lease scope", "note", message)
    elif pid_namespace() not in (None, _INITIAL_PID_NAMESPACE):
        yield _in_container(directory)
    elif _is_private(directory):
        message = (
            f"{directory.path} is private to this session or service, so others do not see its leases; "
            f"run `sudo gpulab setup` and set GPULAB_LEASE_DIR to {HOST_LEASE_DIR}"
        )
        yield Finding("lease scope", "fail", message)
    elif os.path.realpath(directory.path).startswith(_PRIVATE_PLACES):
        message = (
            f"{directory.path} counts as host-wide, but many services, sessions and all containers have a "
            f"private one; unset GPULAB_LEASE_DIR and run `sudo gpulab setup`"
        )
        yield Finding("lease scope", "note", message)
    else:
        yield Finding("lease scope", "ok", "all accounts of this host")


def _in_container(directory: LeaseDirectory) -> Finding:
    """From inside it cannot be seen what the host has; but a directory of the container's own can be told."""
    place = _Mount.of(directory.path, "self")
    if place is not None and place.point == os.path.realpath(directory.path) and place.root != "/":
        message = (
            f"a container, with {directory.path} mounted from outside: all who mount it share these leases"
        )
        return Finding("lease scope", "ok", message)
    message = (
        f"this is a container, and {directory.path} seems to be its own, so nobody outside sees its leases; "
        f"start it with --volume {HOST_LEASE_DIR}:{directory.path}"
    )
    return Finding("lease scope", "note", message)


def _is_private(directory: LeaseDirectory) -> bool:
    """Whether the first process of the machine has something else there; unknown counts as no."""
    ours, theirs = _Mount.of(directory.path, "self"), _Mount.of(directory.path, "1")
    return None not in (ours, theirs) and ours != theirs


class _Mount(NamedTuple):
    """The mount that a path lies on."""

    point: str
    root: str
    """Which directory of the file system is mounted there."""
    device: str
    kind: str

    @classmethod
    def of(cls, path: str, process: str) -> _Mount | None:
        """The longest mount point above `path` in that process's view; None if we may not look."""
        real, best = os.path.realpath(path), None
        try:
            with open(f"/proc/{process}/mountinfo", encoding="utf-8", errors="replace") as mounts:
                for line in mounts:
                    before, _, after = line.partition(" - ")
                    device, root, point = before.split()[2:5]
                    inside = f"{real}/".startswith(f"{point.rstrip('/')}/")
                    if inside and (best is None or len(point) >= len(best.point)):
                        best = cls(point, root, device, after.split()[0])
        except OSError:
            return None
        return best


def _locks_exclude(directory: LeaseDirectory) -> bool:
    """Try it: hold a lock here, and let another process ask for the same."""
    import fcntl

    path = os.path.join(directory.path, f".new-{os.urandom(4).hex()}")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ask = "import fcntl,sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_SH | fcntl.LOCK_NB)"
        other = subprocess.run([sys.executable, "-S", "-c", ask, path], capture_output=True, check=False)
        return b"BlockingIOError" in other.stderr
    finally:
        os.close(fd)
        os.unlink(path)


def _odd_files(directory: LeaseDirectory) -> Iterator[str]:
    """Each file that is not what its name says: its name, its owner, and why."""
    unread = {name for name, record in examined(directory) if record is None}
    owners: dict[int, int] = {}
    claims: dict[str, int] = {}
    statuses = dict(_statuses(directory))
    for name, status in statuses.items():
        match = CLAIM_NAME.fullmatch(name)
        if match is not None:
            owners[status.st_uid] = owners.get(status.st_uid, 0) + 1
            claims[match[2]] = status.st_uid
    for name, status in statuses.items():
        reason = _form(status) or (_unfit(name, status, claims, name in unread))
        if reason is not None and not _belongs(name, status, os.stat(directory.path).st_uid):
            yield f"{shown(name)} of {owner(status)} ({reason})"
    for uid, count in owners.items():
        if count > 2 * MAX_FILES_PER_OWNER:
            yield f"{count} claims of user {uid} (more than anybody needs)"


def _belongs(name: str, status: os.stat_result, owner: int) -> bool:
    """Whether it is one of the directory's own: the guard, what a service publishes, a pause of root's."""
    is_plain = stat.S_ISREG(status.st_mode)
    return name == "guard" or (
        (name == "host" and stat.S_ISDIR(status.st_mode) and status.st_uid == owner)
        or (name == "paused" and is_plain and status.st_uid == 0)
    )


def _statuses(directory: LeaseDirectory) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(directory.path) as entries:
        for entry in entries:
            try:
                yield entry.name, entry.stat(follow_symlinks=False)
            except OSError:  # gone meanwhile
                continue


def _form(status: os.stat_result) -> str | None:
    forms = {
        stat.S_IFLNK: "a link",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFDIR: "a directory",
        stat.S_IFSOCK: "a socket",
    }
    if not stat.S_ISREG(status.st_mode):
        return forms.get(stat.S_IFMT(status.st_mode), "no plain file")
    return "a second name of a file" if status.st_nlink > 1 else None


def _unfit(name: str, status: os.stat_result, claims: dict[str, int], unread: bool) -> str | None:
    """Why a plain file is not what its name says."""
    kind, _, rest = name.partition("-")
    if name.startswith((".new-", ".stop-")):
        return None
    if kind not in ("lease", "ticket", "note", "stop"):
        return "nothing of gpulab's"
    if status.st_size > MAX_FILE_BYTES:
        return "too large"
    if kind in ("lease", "ticket"):
        return f"its text is no {kind}" if unread else None
    holder = claims.get(rest.partition("-")[0])
    believed = (holder,) if kind == "note" else (holder, 0)
    return (
        "of another account than its lease" if holder is not None and status.st_uid not in believed else None
    )
