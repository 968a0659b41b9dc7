"""Ending a lease from outside: its holder is told, then asked, then killed; it is never merely unlocked.

A GPU is free when its processes are gone. So what ends here are processes, and the operating system
drops the lock with the last of them.
"""

import contextlib
import errno
import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from gpulab.allocation.claims import claim_name, is_locked
from gpulab.allocation.directory import LeaseDirectory
from gpulab.allocation.guard import guard
from gpulab.allocation.keepers import HEIR, HOLDER, SHARER, Keeper, is_there, keepers, since
from gpulab.allocation.notes import remove_note
from gpulab.errors import GpulabError

__all__ = ["GRACE_SECONDS", "Outcome", "request_stop", "stop", "stop_requested", "withdraw"]

GRACE_SECONDS = 30.0
_LET_GO_SECONDS = 15.0
"""How long a Jupyter server may take to let go of its copy once the kernel is gone."""
_KERNEL_KILL_SECONDS = 5.0
_UNKILLABLE_SECONDS = 10.0
_POLL_SECONDS = 0.1
_LOOK_SECONDS = 0.5
_NEW_SECONDS = 3.0
_MAX_TURNS = 12
_MAX_SENTENCE = 500
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK if sys.platform != "win32" else 0


class Outcome(NamedTuple):
    """What is left of a claim that was to end."""

    ended: bool
    keepers: tuple[Keeper, ...] = ()
    """Who still shares the lock, as far as we may see."""


def request_stop(directory: LeaseDirectory, lease_id: str, sentence: str) -> None:
    """Tell the holder that its lease is to end, and why. Raises OSError.

    Only the lease's owner and root are believed (`stop_requested`).
    """
    temporary = os.path.join(directory.path, f".stop-{os.urandom(4).hex()}")
    mode = 0o644 if os.getuid() == 0 else 0o600
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, mode)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            os.fchmod(fd, mode)
            file.write(_clean(sentence))
        try:
            os.rename(temporary, _marker(directory, lease_id))
        except PermissionError:  # somebody else took the name: then one that nobody else is asked for
            os.rename(temporary, _marker(directory, lease_id, os.getuid()))
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def stop_requested(directory: LeaseDirectory, lease_id: str, owner_uid: int) -> str | None:
    """The sentence with which root or the lease's owner asked for its end; None if nobody did."""
    places = [_marker(directory, lease_id)]
    places += [_marker(directory, lease_id, uid) for uid in dict.fromkeys((owner_uid, 0))]
    return next(filter(None, (_believed(place, owner_uid) for place in places)), None)


def withdraw(directory: LeaseDirectory, lease_id: str) -> None:
    """Take back what this account asked for. Never raises."""
    for place in (_marker(directory, lease_id), _marker(directory, lease_id, os.getuid())):
        with contextlib.suppress(OSError):
            if os.getuid() in (0, os.lstat(place).st_uid):
                os.unlink(place)


def stop(
    directory: LeaseDirectory,
    claim_id: str,
    fd: int,
    *,
    sentence: str,
    grace: float = GRACE_SECONDS,
    tell: Callable[[str], None] = print,
) -> Outcome:
    """End the claim whose file is open as `fd`; blocks until it has ended, or will not.

    A kernel is told by its marker and asked (SIGTERM) after `grace` seconds; another process is asked
    at once. What has not ended `grace` seconds after that is killed. Then those who inherited
    the descriptor follow, one by one. Who only shares it (a Jupyter server) is never signalled.
    `tell` gets one line for each step. Raises OSError if this account may not signal the holder.
    """
    with contextlib.suppress(OSError):
        request_stop(directory, claim_id, sentence)
    try:
        outcome = _Ending(claim_id, fd, grace, tell).run()
    except KeyboardInterrupt:
        withdraw(directory, claim_id)
        raise
    if outcome.ended:
        _tidy(directory, claim_id, fd)
    return outcome


class _Ending:
    """One process at a time: told, asked, killed."""

    def __init__(self, claim_id: str, fd: int, grace: float, tell: Callable[[str], None]) -> None:
        self.claim_id = claim_id
        self.fd = fd
        self.grace = grace
        self.tell = tell
        self.begun = time.monotonic()
        self.target: Keeper | None = None
        self.since = self.begun
        self.sent: list[signal.Signals] = []
        self.turns = 0
        self.found: tuple[Keeper, ...] = ()
        self.looked = 0.0
        self.sharers: set[tuple[int, int]] = set()
        """Once seen as a mere sharer, never signalled."""

    def run(self) -> Outcome:
        while is_locked(self.fd):
            self._look()
            if self.turns > _MAX_TURNS or time.monotonic() - self.since > self._patience():
                return Outcome(False, self.found)
            if self.target is not None:
                self._press(self.target)
            time.sleep(_POLL_SECONDS)
        return Outcome(True)

    def _look(self) -> None:
        """See who shares the lock; seldom while one process is awaited, since it is a walk through /proc."""
        now = time.monotonic()
        if self.target is not None and now - self.looked < _LOOK_SECONDS and is_there(self.target):
            return
        self.looked, self.found = now, keepers(self.fd, self.claim_id)
        self.sharers |= {keeper[:2] for keeper in self.found if keeper.role == SHARER}
        target = next((keeper for keeper in self.found if self._may_press(keeper)), None)
        if self.turns == 0 or (target and target[:2]) != (self.target and self.target[:2]):
            self._turn_to(target)

    def _may_press(self, keeper: Keeper) -> bool:
        """A lease that is only just taken may name the server that takes it for a kernel."""
        if keeper.role == SHARER or keeper[:2] in self.sharers:
            return False
        # What says to have been taken after now is as old as it may be: the clock was set back, or it lies.
        is_new = 0 <= time.time() - since(self.fd) <= _NEW_SECONDS
        return keeper.of_lease or keeper.role == HEIR or not is_new

    def _turn_to(self, target: Keeper | None) -> None:
        self.target, self.since, self.sent, self.turns = target, time.monotonic(), [], self.turns + 1
        if target is None and self.found and all(keeper.role == SHARER for keeper in self.found):
            self.tell(f"waiting for {' and '.join(map(str, self.found))} to let go")
        elif self._is_told():
            self.tell(f"{target} is a kernel: it is told, and has {self._ask_after():.0f} s")

    def _is_told(self) -> bool:
        return self.target is not None and self.target.is_kernel and self.target.role == HOLDER

    def _patience(self) -> float:
        if self.target is None:
            unseen = self.turns <= 1 and not self.found  # in another namespace: it can only be told
            return self.grace if unseen else _LET_GO_SECONDS
        return self._ask_after() + self._kill_after() + _UNKILLABLE_SECONDS

    def _ask_after(self) -> float:
        """Seconds from turning to the process until it is asked to end."""
        return max(0.0, self.begun + self.grace - self.since) if self._is_told() else 0.0

    def _kill_after(self) -> float:
        return min(self.grace, _KERNEL_KILL_SECONDS) if self._is_told() else self.grace

    def _press(self, target: Keeper) -> None:
        waited = time.monotonic() - self.since
        steps = {
            signal.SIGTERM: (self._ask_after(), "asked to end (SIGTERM)"),
            signal.SIGKILL: (self._ask_after() + self._kill_after(), "did not end and is killed (SIGKILL)"),
        }
        inherited = ", which inherited the lease," if target.role == HEIR else ""
        for number, (after, what) in steps.items():
            if waited >= after and number not in self.sent:
                self.sent.append(number)
                if _send(target, number):
                    self.tell(f"{target}{inherited} {'is ' if number == signal.SIGTERM else ''}{what}")


def _send(keeper: Keeper, number: signal.Signals) -> bool:
    """Signal this very process, never a later one of its number; False if it is gone. Raises OSError."""
    try:
        fd = os.pidfd_open(keeper.pid)
    except ProcessLookupError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
            raise
        fd = -1  # an old kernel, or a container that forbids it
    try:
        if not is_there(keeper):
            return False
        if fd >= 0:
            signal.pidfd_send_signal(fd, number)
        else:
            os.kill(keeper.pid, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        if fd >= 0:
            os.close(fd)


def _tidy(directory: LeaseDirectory, claim_id: str, fd: int) -> None:
    """Remove the dead file, its note and the marker: root may do so for the owner."""
    with contextlib.suppress(GpulabError, OSError), guard(directory):
        for kind in ("lease", "ticket"):
            path = os.path.join(directory.path, claim_name(kind, claim_id))
            with contextlib.suppress(OSError):
                if os.path.samestat(os.lstat(path), os.fstat(fd)) and not is_locked(fd):
                    os.unlink(path)
        remove_note(directory, claim_id)
    withdraw(directory, claim_id)


def _marker(directory: LeaseDirectory, lease_id: str, uid: int | None = None) -> str:
    return os.path.join(directory.path, f"stop-{lease_id}" + ("" if uid is None else f"-{uid}"))


def _believed(path: str, owner_uid: int) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | _OPEN)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and not status.st_mode & 0o022
        if not plain or status.st_uid not in (0, owner_uid) or status.st_size > 4 * _MAX_SENTENCE:
            return None
        return _clean(os.read(fd, 4 * _MAX_SENTENCE).decode(errors="replace")) or None
    except OSError:
        return None
    finally:
        os.close(fd)


def _clean(text: str) -> str:
    """One line without anything that a terminal or a page would obey."""
    words = "".join(c if c.isprintable() else " " for c in text).split()
    return " ".join(words)[:_MAX_SENTENCE]
