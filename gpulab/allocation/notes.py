"""The note beside a claim: its kernel and notebook, for its owner's eyes unless `names` is full."""

import contextlib
import json
import os
import sys

from gpulab.allocation.directory import LeaseDirectory
from gpulab.allocation.records import MAX_FILE_BYTES, LeaseRecord

__all__ = ["annotate", "note_name", "read_note", "remove_note"]

_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK if sys.platform != "win32" else 0
_MAX_TEXT = 1024


def annotate(
    directory: LeaseDirectory,
    claim_id: str,
    *,
    kernel_id: str | None,
    notebook: str | None,
    readable: bool = False,
) -> None:
    """Note the kernel and the notebook of one's own claim; `readable` by all accounts. Raises OSError."""
    path = os.path.join(directory.path, note_name(claim_id))
    mode = 0o644 if readable else 0o600
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, mode)
    except FileExistsError:
        fd = os.open(path, os.O_WRONLY | _OPEN)
    with os.fdopen(fd, "w") as file:
        status = os.fstat(fd)
        if status.st_uid != os.getuid() or status.st_mode & 0o022 or status.st_nlink != 1:
            raise PermissionError(f"{path} is not this account's own")  # somebody waits to read it
        os.fchmod(fd, mode)  # before the text: whoever could read the earlier one has it open, not this
        file.truncate()
        json.dump({"kernel_id": kernel_id, "notebook": notebook}, file)


def read_note(directory: LeaseDirectory, record: LeaseRecord, names: str | None) -> LeaseRecord:
    """The claim with what its note says, if this process may know it."""
    if record.uid != os.getuid() and names != "full":
        return record
    try:
        fd = os.open(os.path.join(directory.path, note_name(record.id)), os.O_RDONLY | _OPEN)
        with os.fdopen(fd) as file:
            if os.fstat(fd).st_uid != record.uid:
                return record
            note = json.loads(file.read(MAX_FILE_BYTES))
        return record._replace(kernel_id=_text(note["kernel_id"]), notebook=_text(note["notebook"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return record


def _text(value: object) -> str | None:
    """Another account may have written anything: a plain short line, or nothing."""
    return value if isinstance(value, str) and len(value) <= _MAX_TEXT and value.isprintable() else None


def note_name(claim_id: str) -> str:
    """The file name of a claim's note."""
    return f"note-{claim_id}"


def remove_note(directory: LeaseDirectory, claim_id: str) -> None:
    """Remove it, if it is there and ours."""
    with contextlib.suppress(OSError):  # where it is another's, the sticky bit keeps it
        os.unlink(os.path.join(directory.path, note_name(claim_id)))
