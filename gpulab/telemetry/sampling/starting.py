"""The readers' side of the sampler: see to it that one runs, and tell it that somebody reads.

Both cost a reader some ten system calls, so it may call them each second.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from gpulab import config
from gpulab.config import Settings
from gpulab.hardware import hosting
from gpulab.telemetry.sampling.election import lock_path, log_path, take_lock

if TYPE_CHECKING:
    import subprocess

__all__ = ["ensure", "readers_path", "touch"]

_SURPRISES = ("PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "PYTHONSTARTUP", "PYTHONWARNINGS")
_LOG = logging.getLogger(__name__)

_started: list[subprocess.Popen[bytes]] = []


def readers_path(settings: Settings) -> str:
    """A file whose time of change says when somebody last read."""
    return os.path.join(settings.machine_dir, "readers")


def touch(settings: Settings) -> None:
    """Tell the sampler that somebody reads. Cheap, and never raises."""
    path = readers_path(settings)
    try:
        os.utime(path)
    except OSError:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError:
            return  # no directory, or not ours to write: then there is no sampler to tell either


def ensure(settings: Settings) -> bool:
    """See to it that a sampler runs, this account's or the host's; False if none can.

    Never raises. Where one runs it costs some ten system calls.
    """
    _started[:] = [child for child in _started if child.poll() is None]  # those that ended are let go
    if hosting.serving(settings):
        return True
    try:
        lock = take_lock(lock_path(settings))
        if lock is None:
            return True  # it runs, or another process is starting it
        try:
            touch(settings)
            _start(settings, lock)
        finally:
            os.close(lock)  # the sampler has its own hold on the same lock
    except (OSError, ImportError) as error:  # no fcntl: not a system for it
        _LOG.info("The sampler cannot be started: %s", error)
        return False
    return True


def _start(settings: Settings, lock: int) -> None:
    """The lock is handed down, so of many processes that call `ensure` at once one starts one sampler."""
    import subprocess

    with open(log_path(settings), "wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "gpulab.telemetry.sampler", "--lock-fd", str(lock)],
            cwd="/",
            env=_environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            close_fds=True,
            pass_fds=(lock,),
            start_new_session=True,
        )
    _started.append(child)


def _environment(settings: Settings) -> dict[str, str]:
    """That of this process, `settings` spelled out, less the lease: it is not the sampler's to hold."""
    environ = {
        name: value
        for name, value in config.inherited().items()
        if not name.startswith("GPULAB_LEASE") and name not in _SURPRISES
    }
    for name, value in (
        ("GPULAB_DATA_DIR", settings.data_dir),
        ("GPULAB_SIMULATE", settings.simulate),
        ("GPULAB_LEASE_DIR", settings.lease_dir),
    ):
        environ.pop(name, None)
        if value is not None:
            environ[name] = value
    return environ
