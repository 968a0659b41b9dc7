"""The one process of an account that samples this machine's GPUs, once a second, for all its readers.

`ensure()` starts it, a lock elects it, and it ends by itself when nobody reads and no lease is held, or
when a sampler of the whole host serves. `python -m gpulab.telemetry.sampler` is that process; readers
have all they need here too, and load none of what only the process needs.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpulab import config
from gpulab.config import Settings
from gpulab.errors import GpulabError
from gpulab.telemetry.sampling.election import lock_path, log_path, running_pid, take_lock
from gpulab.telemetry.sampling.starting import ensure, readers_path, touch
from gpulab.telemetry.sampling.wake import look
from gpulab.telemetry.sampling.watches import Watch, watch

if TYPE_CHECKING:
    from gpulab.telemetry.sampling.account_sampler import Sampler
    from gpulab.telemetry.sampling.host_sampler import AlreadyServingError, HostSampler

__all__ = [
    "AlreadyServingError",
    "HostSampler",
    "Sampler",
    "Watch",
    "ensure",
    "lock_path",
    "log_path",
    "look",
    "main",
    "readers_path",
    "running_pid",
    "touch",
    "watch",
]

_LATER = {"AlreadyServingError": "host_sampler", "HostSampler": "host_sampler", "Sampler": "account_sampler"}
_LOG = logging.getLogger(__name__)


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"gpulab.telemetry.sampling.{_LATER[name]}"), name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Be the sampler, or leave at once if there is one."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m gpulab.telemetry.sampler", description=main.__doc__)
    parser.add_argument("--lock-fd", type=int, help="the lock, taken by the process that started this one")
    parser.add_argument("--idle-seconds", type=float, help="end after so long without readers")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    try:
        settings = config.load()
        lock = options.lock_fd if options.lock_fd is not None else take_lock(lock_path(settings))
        if lock is not None:
            _serve(settings, lock, options.idle_seconds)
    except (GpulabError, OSError, ImportError) as error:
        _LOG.warning("The sampler ends: %s", error)
        return 1
    return 0


def _serve(settings: Settings, lock: int, idle_seconds: float | None) -> None:
    from gpulab.telemetry.sampling.account_sampler import IDLE_SECONDS, Sampler

    os.set_inheritable(lock, False)
    sampler = Sampler(settings, lock, idle_seconds=idle_seconds or IDLE_SECONDS)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sampler.stop.set())
    try:
        sampler.run()
    finally:
        os.close(lock)  # a thread that hangs in the driver may keep this process for long, but not its office


if __name__ == "__main__":
    sys.exit(main())
