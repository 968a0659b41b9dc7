"""Watches: locked files that say "sample five times a second while this is locked".

A cell that holds the interpreter lock can touch nothing, and one that is killed can tell nobody: the
lock does both.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import stat
import sys
import time
import weakref
from collections import Counter
from typing import NamedTuple

from gpulab.config import Settings
from gpulab.hardware import hosting
from gpulab.telemetry.sampling.wake import look

if sys.platform != "win32":
    import fcntl

__all__ = ["Watch", "Watched", "Watches", "watch", "watches_path"]

_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK if sys.platform != "win32" else 0
_LINKS = b"links\n"
_MOST_NAMES = 4096
_MOST_FILES = 256
_MOST_PER_OWNER = 32
_MAKING_SECONDS = 60.0
_LOG = logging.getLogger(__name__)

_held: weakref.WeakSet[Watch] = weakref.WeakSet()


def watches_path(settings: Settings) -> str:
    """Where this account's watches lie."""
    return os.path.join(settings.machine_dir, "watches")


class Watch:
    """A watch that this process keeps until `close`, or its own end. A forked child keeps none."""

    def __init__(self, files: list[tuple[int, str]]) -> None:
        self._files = files
        _held.add(self)

    @property
    def active(self) -> bool:
        """Whether a sampler can see it."""
        return bool(self._files)

    def close(self) -> None:
        """End it. Twice is fine; never raises."""
        files, self._files = self._files, []
        for descriptor, path in files:
            with contextlib.suppress(OSError):
                os.unlink(path)  # no child unlinks it: those have closed theirs
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _let_go(self) -> None:
        """In a forked child: its descriptors share the lock, and must neither keep it nor end it."""
        files, self._files = self._files, []
        for descriptor, _ in files:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def watch(settings: Settings, *, links: bool = False) -> Watch:
    """Have samples taken five times a second until the watch is closed; `links` asks for PCIe and NVLink.

    It counts as a reader, and starts no sampler. Never raises: where it cannot be, `active` is False.
    """
    files = []
    if sys.platform != "win32":
        for directory in _directories(settings):
            try:
                files.append(_hold(directory, _LINKS if links else b"\n"))
            except OSError as error:
                _LOG.info("No watch in %s: %s", directory, error)
    made = Watch(files)
    if files:
        look(settings)
    return made


class Watched(NamedTuple):
    """What the live watches ask for, all together."""

    active: bool = False
    links: bool = False


class Watches:
    """The sampler's look at them. The directory is its own, and what is dead in there it removes.

    All accounts may write in a host's, so only plain files count, so many of each owner, and a flood of
    them is cleared away bit by bit instead of being looked at.
    """

    def __init__(self, directory: str, mode: int = 0o700) -> None:
        self.directory = directory
        with contextlib.suppress(OSError):
            os.makedirs(directory, mode=0o700, exist_ok=True)
            os.chmod(directory, mode)

    def look(self) -> Watched:
        """What they ask for now. Never raises."""
        active = links = False
        owners: Counter[int] = Counter()
        kinds: dict[bool, list[os.DirEntry[str]]] = {True: [], False: []}
        try:
            with os.scandir(self.directory) as entries:
                for entry in itertools.islice(entries, _MOST_NAMES):
                    kinds[entry.is_file(follow_symlinks=False)].append(entry)
        except OSError:
            return Watched()
        for entry in kinds[True][:_MOST_FILES]:
            content = _content(entry.path, owners)
            active = active or content is not None
            links = links or content == _LINKS
        for entry in kinds[False][:_MOST_FILES]:
            _clear(entry)
        return Watched(active, links)


def _directories(settings: Settings) -> list[str]:
    """The account's too where a host's sampler serves: it may end while the watch lasts."""
    own = watches_path(settings)
    with contextlib.suppress(OSError):
        os.makedirs(own, mode=0o700, exist_ok=True)
    return [hosting.watches_path(settings), own] if hosting.serving(settings) else [own]


def _hold(directory: str, content: bytes) -> tuple[int, str]:
    """A new locked file: its descriptor and path. Raises OSError."""
    name = os.urandom(8).hex()
    path, temporary = os.path.join(directory, f"watch-{name}"), os.path.join(directory, f".new-{name}")
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before it can be taken for a dead one
        os.write(descriptor, content)
        os.fchmod(descriptor, 0o644)  # another account's sampler must be able to read it
        os.rename(temporary, path)
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return descriptor, path


def _content(path: str, owners: Counter[int]) -> bytes | None:
    """What a live watch says; None if this is none. A dead one, or one too many, is removed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _OPEN)
    except OSError:
        with contextlib.suppress(OSError):
            if not _is_being_made(path, os.lstat(path)):
                os.unlink(path)
        return None
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and _is_locked(descriptor):
            owners[status.st_uid] += 1
            if owners[status.st_uid] <= _MOST_PER_OWNER:
                return os.pread(descriptor, len(_LINKS), 0)
            os.unlink(path)
        elif not _is_being_made(path, status):
            os.unlink(path)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _clear(entry: os.DirEntry[str]) -> None:
    """What is no file is no watch, and many of them would hide those that are."""
    with contextlib.suppress(OSError):
        if entry.is_dir(follow_symlinks=False):
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)


def _is_being_made(path: str, status: os.stat_result) -> bool:
    is_new = abs(time.time() - status.st_mtime) < _MAKING_SECONDS
    return is_new and os.path.basename(path).startswith(".new-")


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False  # closing the descriptor lets go of it again


def _close_in_child() -> None:
    for held in list(_held):
        held._let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
