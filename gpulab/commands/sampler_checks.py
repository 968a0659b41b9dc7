"""For `gpulab doctor`: who samples the GPUs, whether a service of the host does, and who has paused it."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator

from gpulab.allocation.directory import find
from gpulab.commands.finding import Finding, owner, shown
from gpulab.config import Settings
from gpulab.errors import GpulabError
from gpulab.hardware import hosting, pausing, record
from gpulab.units import format_duration

__all__ = ["check_paused", "check_sampler", "check_service"]

_FRESH_SECONDS = 5.0
_LAST_WORDS_BYTES = 4096


def check_paused(settings: Settings) -> Iterator[Finding]:
    """A pause, by whom and since when; nothing where there is none."""
    sentence = pausing.paused(settings)
    if sentence is not None:
        yield Finding("paused", "note", sentence)


def check_sampler(settings: Settings) -> Iterator[Finding]:
    """Whether GPUs are sampled now: by the host's service, by this account's sampler, or if one looks."""
    from gpulab.telemetry import sampler

    pid = sampler.running_pid(settings)
    newest = record.latest(settings)
    age = None if newest is None else time.time() - newest.time
    if hosting.serving(settings):
        yield Finding("sampler", "ok", f"a service samples for {_whom(settings)}; no other is needed")
    elif pid is not None and age is not None and -_FRESH_SECONDS < age < _FRESH_SECONDS:
        yield Finding(
            "sampler", "ok", f"this account's own, process {pid}; its record is {max(age, 0.0):.1f} s old"
        )
    elif pid is not None:
        yield _stuck(pid, age)
    elif not _can_be_made(settings.machine_dir):
        message = f"{settings.machine_dir} cannot be written; set GPULAB_DATA_DIR to a directory of yours."
        yield Finding("sampler", "fail", message)
    else:
        yield from _asleep(settings)


def _stuck(pid: int, age: float | None) -> Finding:
    if age is None:
        told = "has written no record yet; look again in some seconds"
    elif age < 0:
        told = "has written no record since the clock was set back; look again in some seconds"
    else:
        told = f"has written nothing for {format_duration(age)}; if no driver hangs, end it with kill"
    return Finding("sampler", "note", f"process {pid} runs and {told}")


def _asleep(settings: Settings) -> Iterator[Finding]:
    from gpulab.telemetry import sampler

    words = _last_words(sampler.log_path(settings))
    if words:
        yield Finding("sampler", "note", f"not running now, and the last one said: {words}")
    else:
        yield Finding("sampler", "ok", "not running now; it starts when somebody looks")


def _last_words(path: str) -> str:
    """The last line of the sampler's log; empty in good times."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_WORDS_BYTES))
            lines = file.read(_LAST_WORDS_BYTES).decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return shown(lines[-1], 240) if lines else ""


def _can_be_made(path: str) -> bool:
    while path != os.path.dirname(path) and not os.path.lexists(path):
        path = os.path.dirname(path)
    return os.path.isdir(path) and os.access(path, os.W_OK)


def check_service(settings: Settings) -> Iterator[Finding]:
    """`gpulab serve`: whether it publishes and since when, or why what it publishes is not believed.

    Without one all is well: then each account samples for itself.
    """
    place, machine = hosting.host_dir(settings), hosting.machine_path(settings)
    distrust = _distrust(settings)
    if distrust is not None:
        yield Finding("service", "note", f"what {place} publishes is not read, because {distrust}")
    elif hosting.serving(settings):
        yield Finding("service", "ok", f"publishes for {_whom(settings)} in {machine}{_since(settings)}")
    elif os.path.isdir(machine):
        message = (
            f"{machine} is not published to now, so each account samples for itself; start `gpulab serve`"
        )
        yield Finding("service", "note", message)


def _whom(settings: Settings) -> str:
    """For whom a service is one: as far as the lease directory reaches."""
    with contextlib.suppress(GpulabError):
        if find(settings).scope == "host":
            return "all accounts"
    return "this account"


def _since(settings: Settings) -> str:
    try:
        status = os.stat(hosting.lock_path(settings))
    except OSError:
        return ""
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.st_mtime))
    return f", as {owner(status)} since {since}"


def _distrust(settings: Settings) -> str | None:
    """Why the directory is not believed; None if it is, or is not there."""
    root, place = hosting.lease_root(settings), hosting.host_dir(settings)
    try:
        above, status = os.lstat(root), os.lstat(place)
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        return "it is no directory; have it removed"
    if status.st_uid != above.st_uid:
        return f"it belongs to {owner(status)}, and {root} to {owner(above)}; have it removed"
    if hosting.trusted(settings) is not None or not os.path.lexists(hosting.machine_path(settings)):
        return None
    return f"others than its owner may write in {root}, in it, or below it; run `sudo gpulab setup`"
