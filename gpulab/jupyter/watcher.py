"""The Jupyter server's watch over its GPU kernels: the lease says who is idle, and the rules who is stopped.

Whatever may block runs in a thread. A kernel is judged, written about and stopped on the event loop,
because its state and its provisioner live there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Collection
from typing import Any, NamedTuple

from jupyter_core.utils import ensure_async

from gpulab import config
from gpulab.allocation import leases, stopping
from gpulab.allocation.claims import HeldClaim, claim_name
from gpulab.allocation.directory import LeaseDirectory
from gpulab.allocation.leases import HeldLease, LeaseRecord
from gpulab.config import Settings
from gpulab.errors import GpulabError
from gpulab.hardware.devices import Snapshot
from gpulab.hardware.observe import observe
from gpulab.jupyter import reclaimed
from gpulab.jupyter.idle import Look, Rest, Rule, look_every, rule_for, uses_gpu
from gpulab.jupyter.notices import stopped_for_idleness
from gpulab.jupyter.provisioner import GpuProvisioner
from gpulab.jupyter.reclaimed import Reclaimed
from gpulab.jupyter.threads import in_thread
from gpulab.telemetry import sampler

__all__ = ["Watcher"]

_SAME_SECONDS = 1.0
_File = tuple[int, int]
"""A file system and the number of a file in it."""


class _Sight(NamedTuple):
    """What a thread saw: the machine, if anybody asked for it, and the leases by their files."""

    settings: Settings
    snapshot: Snapshot | None = None
    leases: dict[_File, LeaseRecord] = {}  # noqa: RUF012 - never written to
    to_stop: frozenset[str] = frozenset()

    def uses_gpu(self, record: LeaseRecord) -> bool | None:
        if self.snapshot is None:
            return None
        return uses_gpu(record, tuple(self.leases.values()), self.snapshot, time.time())


class _Watched:
    """A kernel that was given a GPU or waits for one, and what is known of it between two looks."""

    def __init__(self, kernel_id: str, kernel: Any, claim: HeldClaim, file: _File) -> None:
        self.kernel_id = kernel_id
        self.kernel = kernel
        self.claim = claim
        self.file = file
        """By this a ticket is known again as the lease that it has become."""
        self.rest = Rest()
        self._taken: tuple[str, float] | None = None
        self._changes = 0
        self._has_state = bool(kernel.has_trait("execution_state"))
        if self._has_state:
            kernel.observe(self._note, names="execution_state")

    def forget(self) -> None:
        if self._has_state:
            self.kernel.unobserve(self._note, names="execution_state")

    def _note(self, _: object) -> None:
        self._changes += 1

    @property
    def mark(self) -> object:
        """Another one after each request that the kernel has worked on.

        Not the server's `last_activity`: output counts there, also that of threads, so a kernel that
        was told of its idleness would no longer be idle.
        """
        last = None if self._has_state else getattr(self.kernel, "last_activity", None)
        return self._changes, last, self.kernel.provisioner.pid

    def look(self, sight: _Sight, record: LeaseRecord) -> Look:
        state = getattr(self.kernel, "execution_state", None)
        return Look(state, (self.mark, record.id), sight.uses_gpu(record))

    def rule(self, sight: _Sight, record: LeaseRecord, now: float) -> Rule | None:
        """By the lease's age; of the time of day, which may jump, it depends only at the first look."""
        if self._taken is None or self._taken[0] != record.id:
            self._taken = record.id, now - max(0.0, time.time() - record.since)
        return rule_for(sight.settings, now - self._taken[1])

    def is_current(self) -> bool:
        """Whether the kernel still has the very claim that is watched."""
        return _claim_of(self.kernel) == (self.claim, self.file)

    def describe(self, record: LeaseRecord, idle_since: float | None) -> None:
        """Write into the lease. Raises OSError, ValueError."""
        HeldLease(self.claim.directory, record.id, self.claim.fd).describe(idle_since=idle_since)


class Watcher:
    """Looks at a server's kernels again and again, for as long as the server lives. Never raises."""

    def __init__(self, kernels: Any, sessions: Any, log: Any) -> None:
        self._kernels = kernels
        self._sessions = sessions
        self._log = log
        self._watched: dict[str, _Watched] = {}
        self._said = ""

    def start(self, loop: Any) -> None:
        """Begin once the server's event loop runs."""
        loop.add_callback(self._turn, loop)

    async def _turn(self, loop: Any) -> None:
        pause = look_every(Settings())
        try:
            pause = await self.look()
        except GpulabError as error:
            self._say(str(error))
        except Exception:  # noqa: BLE001 - the server is not ours, and what failed may work next time
            self._log.warning("gpulab: its kernels could not be looked at", exc_info=True)
        loop.call_later(pause, self._turn, loop)

    async def look(self) -> float:
        """Judge every kernel once; return the seconds until the next look. Raises ConfigError."""
        watched = self._refresh()
        sight = await in_thread(lambda: _see({one.claim.directory for one in watched}))
        over = [one for one in watched if self._judge(one, sight)]
        await asyncio.gather(*(self._stop(one) for one in over))
        for one in watched:
            record = sight.leases.get(one.file)
            if record is not None and record.id in sight.to_stop:
                await self._let_go_if_dead(one)
        return look_every(sight.settings)

    def _refresh(self) -> list[_Watched]:
        """The kernels of this server that have a claim now, with what is known of them."""
        kernels = {key: self._kernels.get_kernel(key) for key in self._kernels.list_kernel_ids()}
        claims = {key: found for key, kernel in kernels.items() if (found := _claim_of(kernel)) is not None}
        for key, one in list(self._watched.items()):
            if kernels.get(key) is not one.kernel or claims.get(key) != (one.claim, one.file):
                self._watched.pop(key).forget()
        for key, (claim, file) in claims.items():
            if key not in self._watched:
                self._watched[key] = _Watched(key, kernels[key], claim, file)
        return list(self._watched.values())

    def _judge(self, one: _Watched, sight: _Sight) -> bool:
        """Bring the lease's text up to date; return whether the kernel is to be stopped."""
        record = sight.leases.get(one.file)
        if record is None or not one.is_current():
            return False
        now = time.monotonic()
        rule = one.rule(sight, record, now)
        one.rest = one.rest.after(one.look(sight, record), now, rule)
        self._describe(one, record, now)
        return sight.settings.on_idle == "stop" and one.rest.is_reclaimable(now, rule)

    def _describe(self, one: _Watched, record: LeaseRecord, now: float) -> None:
        """Here and not in a thread: at any await its descriptor may be closed, and its number another's."""
        rested = 0.0 if one.rest.idle_from is None else now - (one.rest.since or now)
        idle_since = time.time() - rested if rested else None
        if idle_since is None or record.idle_since is None:
            is_same = idle_since == record.idle_since
        else:
            is_same = abs(idle_since - record.idle_since) < _SAME_SECONDS
        try:
            if not is_same:
                one.describe(record, idle_since)
        except (OSError, ValueError):
            self._log.debug("gpulab: lease %s could not be described", record.id, exc_info=True)

    async def _stop(self, one: _Watched) -> None:
        """Look once more, then shut the kernel down as its user would, and leave word why."""
        rest = one.rest
        notebook = await self._notebook(one.kernel_id)
        sight = await in_thread(lambda: _see({one.claim.directory}, newest=True))
        record = sight.leases.get(one.file)
        rule = None if record is None else one.rule(sight, record, time.monotonic())
        if record is None or rule is None:
            return
        entry = _entry(one.kernel_id, notebook or record.notebook, rest, rule)
        await in_thread(lambda: reclaimed.remember(entry, sight.settings))
        if not self._may_stop(one, sight, record, rest):
            await in_thread(lambda: reclaimed.forget(entry, sight.settings))
            return
        self._log.warning("gpulab: kernel %s is shut down: %s", one.kernel_id, entry.sentence)
        try:
            # Since the last check nothing was awaited, so no cell can have begun unseen.
            await ensure_async(self._kernels.shutdown_kernel(one.kernel_id))
        except Exception:  # noqa: BLE001 - somebody was faster, such as the server's own culling
            self._log.warning("gpulab: kernel %s could not be shut down", one.kernel_id, exc_info=True)
            await in_thread(lambda: reclaimed.forget(entry, sight.settings))
        else:
            await ensure_async(self._sessions.list_sessions())  # drops those whose kernel has gone

    def _may_stop(self, one: _Watched, sight: _Sight, record: LeaseRecord, rest: Rest) -> bool:
        """By what is known at this very moment."""
        now = time.monotonic()
        rule = one.rule(sight, record, now)
        one.rest = rest.after(one.look(sight, record), now, rule)
        return (
            sight.settings.on_idle == "stop"
            and one.rest.is_reclaimable(now, rule)
            and one.kernel_id in self._kernels
            and self._kernels.get_kernel(one.kernel_id) is one.kernel
            and not getattr(one.kernel, "shutting_down", False)
            and one.is_current()
        )

    async def _notebook(self, kernel_id: str) -> str | None:
        """Where the kernel's notebook is now: it may have been renamed since the kernel's start."""
        for session in await ensure_async(self._sessions.list_sessions()):
            if session["kernel"]["id"] == kernel_id and session["type"] == "notebook":
                environment = self._sessions.get_kernel_env(session["path"], session["name"])
                return str(environment["JPY_SESSION_NAME"])
        return None

    async def _let_go_if_dead(self, one: _Watched) -> None:
        """Somebody asked for its end, and nobody will restart it: then nothing else frees its GPU."""
        if getattr(one.kernel, "autorestart", False) or await ensure_async(one.kernel.is_alive()):
            return
        if one.is_current():
            one.claim.give_up()

    def _say(self, sentence: str) -> None:
        if sentence != self._said:
            self._log.warning("gpulab: idle kernels are not looked for: %s", sentence)
            self._said = sentence


def _entry(kernel_id: str, notebook: str | None, rest: Rest, rule: Rule) -> Reclaimed:
    now = time.time()
    rested = time.monotonic() - (rest.since or time.monotonic())
    return Reclaimed(
        now, stopped_for_idleness(now, now - rested, rule.idle + rule.grace), notebook, kernel_id
    )


def _claim_of(kernel: Any) -> tuple[HeldClaim, _File] | None:
    """The claim that this server holds for a kernel, and its file, if the kernel is one of ours."""
    provisioner = getattr(kernel, "provisioner", None)
    if not isinstance(provisioner, GpuProvisioner):
        return None
    claim = provisioner.lease.held if provisioner.lease is not None else provisioner.ticket
    try:
        status = os.fstat(claim.fd) if claim is not None and claim.fd >= 0 else None
    except OSError:
        return None
    return None if claim is None or status is None else (claim, (status.st_dev, status.st_ino))


def _see(directories: Collection[LeaseDirectory], *, newest: bool = False) -> _Sight:
    """Look at leases and machine, in a thread. Raises ConfigError."""
    settings = config.load()
    if not directories:
        return _Sight(settings)
    found: dict[_File, LeaseRecord] = {}
    to_stop = set()
    for directory in directories:
        for record in leases.live(directory):
            with contextlib.suppress(OSError):
                status = os.stat(os.path.join(directory.path, claim_name("lease", record.id)))
                found[status.st_dev, status.st_ino] = record
            if record.uid == os.getuid() and stopping.stop_requested(directory, record.id, record.uid):
                to_stop.add(record.id)
    snapshot = None
    if settings.idle_after is not None or settings.max_lease_age is not None:
        sampler.ensure(settings)
        snapshot = observe(max_age=0 if newest else 2.0, settings=settings, detail="full")
    return _Sight(settings, snapshot, found, frozenset(to_stop))
