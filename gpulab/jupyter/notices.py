"""What a kernel's user is told of an idle GPU and of a request to stop: the sentences, and when."""

from __future__ import annotations

import os
import time

from gpulab import config
from gpulab.allocation import session, stopping
from gpulab.allocation.leases import HeldLease
from gpulab.config import Settings
from gpulab.jupyter.attendant import Attendant
from gpulab.jupyter.idle import rule_for
from gpulab.units import format_duration

__all__ = ["Notices", "attend", "idle_notice", "stopped_for_idleness"]

_EVERY_SECONDS = 2.0


def idle_notice(idle_since: float, stop_at: float | None, now: float) -> str:
    """What stands under the last cell of a kernel that is idle; times in seconds since the epoch."""
    since = f"this kernel has not used its GPU since {_clock(idle_since, now)}"
    if stop_at is None:
        return f"{since}; others may wait for one, so give it back with `%gpu release`, or shut down."
    return (
        f"{since}, and its Jupyter server will stop it at {_clock(stop_at, now)}; run a cell to keep it, "
        "or save what you need (`%gpu release` gives the GPU back and keeps the kernel)."
    )


def stopped_for_idleness(now: float, idle_since: float, rule: float) -> str:
    """What the next kernel of the same notebook says first."""
    return (
        f"this notebook's last kernel was stopped at {_clock(now, 0)}: it had not used its GPU since "
        f"{_clock(idle_since, now)}, and idle kernels are stopped here after {format_duration(rule)}; "
        "its variables are gone, so run again the cells that you need."
    )


def _clock(moment: float, now: float) -> str:
    """The time of day here, with its date unless that is today's."""
    then = time.localtime(moment)
    is_today = then[:3] == time.localtime(now)[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", then)


class Notices:
    """A duty of the kernel's attendant: it reads the own lease, and says each thing once."""

    def __init__(self, attendant: Attendant) -> None:
        self._attendant = attendant
        self._told_idle: float | None = None
        self._told_stop: str | None = None

    def __call__(self) -> None:
        lease = session.current()
        held = None if lease is None else lease.held
        if held is None or not held.is_held():
            self._told_idle, self._told_stop = None, None
            return
        self._tell_stop(held)
        self._tell_idle(held)

    def _tell_idle(self, held: HeldLease) -> None:
        record = held.record()
        before, self._told_idle = self._told_idle, record.idle_since
        if record.idle_since is None or record.idle_since == before:
            return  # at work, or told of this very rest
        settings, now = config.load(), time.time()
        rule = rule_for(settings, now - record.since)
        if rule is None or settings.on_idle == "nothing":
            return
        stop_at = now + rule.grace if settings.on_idle == "stop" else None
        # Not later: with the next cell the kernel is at work again.
        self._attendant.say(idle_notice(record.idle_since, stop_at, now), later=False)

    def _tell_stop(self, held: HeldLease) -> None:
        sentence = stopping.stop_requested(held.directory, held.id, os.getuid())
        if sentence is not None and sentence != self._told_stop:
            self._attendant.say(sentence)
        self._told_stop = sentence


def attend(attendant: Attendant, settings: Settings) -> None:
    """Let this kernel's attendant tell what became of the last one, and what is to become of this one."""
    if settings.notice is not None:
        attendant.say(settings.notice, with_next_cell=True)
    attendant.attend(Notices(attendant), _EVERY_SECONDS)
