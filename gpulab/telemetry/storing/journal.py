"""How the history's file is journalled: a write-ahead log on local disks, a rollback journal elsewhere.

The log needs memory that all readers share, which no network file system offers, although some only
fail at it once two machines meet: so the file system's type decides, and where it looks local, the trial.
"""

from __future__ import annotations

import os
import sqlite3

__all__ = ["choose", "file_system", "is_remote"]

_REMOTE = (
    *("9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs"),
    *("lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb3"),
    *("smbfs", "vboxsf", "vmhgfs", "wekafs"),
)
_LOG_BYTES = 4 * 2**20


def choose(connection: sqlite3.Connection, path: str, mounts: str = "/proc/self/mountinfo") -> str:
    """Set the journal's mode; returns it. Raises sqlite3.Error if the file cannot be written at all."""
    mode = "truncate" if is_remote(file_system(path, mounts)) else "wal"
    try:
        found = connection.execute(f"PRAGMA journal_mode = {mode}").fetchone()[0]
    except sqlite3.OperationalError:
        found = connection.execute("PRAGMA journal_mode = TRUNCATE").fetchone()[0]
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
    connection.execute("PRAGMA synchronous = NORMAL")
    return str(found)


def is_remote(kind: str | None) -> bool:
    """Whether a file system may be another machine's; those in user space usually are."""
    return kind is not None and (kind in _REMOTE or kind.startswith("fuse.") or kind == "fuse")


def file_system(path: str, mounts: str = "/proc/self/mountinfo") -> str | None:
    """The type of the file system that holds `path`; None if the system does not tell."""
    real = os.path.realpath(path)
    best, kind = -1, None
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                fields, _, rest = line.partition(" - ")
                point = _unescaped(fields.split()[4])
                if _is_below(real, point) and len(point) >= best:  # the later one hides the earlier
                    best, kind = len(point), rest.split()[0]
    except (OSError, IndexError):
        return None
    return kind


def _is_below(path: str, point: str) -> bool:
    return point in ("/", path) or path.startswith(f"{point}/")


def _unescaped(point: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(code, character)
    return point
