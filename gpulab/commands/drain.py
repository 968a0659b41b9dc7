"""`gpulab drain`: root takes a GPU out of service; who runs there is left alone and named."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gpulab import config
from gpulab.allocation.leases import live_leases
from gpulab.allocation.policy import is_drained
from gpulab.config import Settings
from gpulab.errors import ConfigError, LeaseError, RequestError
from gpulab.hardware import nvml
from gpulab.hardware.devices import Device, Snapshot
from gpulab.rules import drained_in_file, of_administrator

__all__ = ["Target", "add_arguments", "change", "named", "run"]

_FULL_UUID = re.compile(
    r"(GPU|MIG)(-GPU)?-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(/[0-9]+/[0-9]+)?", re.IGNORECASE
)
_HEAD = """\
# GPUs out of service, one UUID a line: written by `gpulab drain`, removed by `gpulab undrain`.
"""


class Target(NamedTuple):
    """A GPU or MIG slice that was named."""

    uuid: str
    device: Device | None
    """None where this machine does not show it now."""

    def __str__(self) -> str:
        if self.device is None:
            return self.uuid
        kind = "MIG slice of GPU" if self.device.kind == "mig" else "GPU"
        return f"{kind} {self.device.index} ({self.device.name or 'unknown'}, {self.uuid})"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gpulab drain`."""
    parser.add_argument(
        "gpu", metavar="GPU", help="its index, its UUID or the beginning of it; also a MIG slice's"
    )


def run(args: argparse.Namespace) -> int:
    """Note it in the file beside the administrator's. Raises LeaseError if this is not root's call."""
    settings = config.load()
    target = named(args.gpu, settings)
    rules = of_administrator(config.ADMIN_FILE, config.drained_file())
    if target.uuid.lower() in [entry.lower() for entry in rules.get("drained", ())]:
        print(f"{target} is out of service already.")
    else:
        who = config.inherited().get("SUDO_USER") or "root"
        what = "" if target.device is None else f"GPU {target.device.index} {target.device.name}, "
        line = f"{target.uuid}  # {what}by {_plain(who)} on {time.strftime('%Y-%m-%d %H:%M')}"
        change(lambda lines: [*(lines or _HEAD.splitlines()), line])
        print(f"{target} is out of service: no new lease is given of it.")
    holders = _holders(target, settings)
    if holders:
        still = "1 lease still runs" if len(holders) == 1 else f"{len(holders)} leases still run"
        print(f"{still} there: {', '.join(holders)}. `gpulab stop LEASE` ends one.")
    return 0


def named(text: str, settings: Settings) -> Target:
    """The device that an index, a UUID or the beginning of one names.

    Raises LeaseError if this is not root's call, RequestError if it names none, or several.
    """
    if os.geteuid() != 0:
        raise LeaseError("Only root can take GPUs out of service or put them back; use sudo.")
    snapshot = nvml.snapshot(detail="choice", settings=settings)
    found = _matching(text, snapshot)
    if len(found) > 1:
        names = ", ".join(str(device.uuid) for device in found)
        raise RequestError(f"{text!r} begins {len(found)} UUIDs ({names}); write more of it.")
    if found and found[0].uuid is not None:
        return Target(found[0].uuid, found[0])
    if _FULL_UUID.fullmatch(text):
        return Target(text, None)
    if found:
        raise RequestError(f"GPU {text} does not tell its UUID now; write the UUID itself.")
    known = snapshot.driver.message or f"there are {len(snapshot.devices)} devices, see `gpulab status`"
    raise RequestError(f"No GPU of this machine is {text!r}; {known}.".replace("..", "."))


def _matching(text: str, snapshot: Snapshot) -> list[Device]:
    if text.isdecimal():
        return [d for d in snapshot.devices if d.kind == "gpu" and d.index == int(text)]
    if not text.upper().startswith(("GPU-", "MIG-")):
        return []
    begun = [d for d in snapshot.devices if (d.uuid or "").lower().startswith(text.lower())]
    return [d for d in begun if (d.uuid or "").lower() == text.lower()] or begun


def change(edit: Callable[[list[str]], list[str]]) -> None:
    """Rewrite the lines of the file in one step. Raises ConfigError if it cannot be written, or trusted."""
    path = config.drained_file()
    before = os.umask(0o022)  # whatever root's is: every account must be able to read the rules
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with _alone(os.path.dirname(path)):
            drained_in_file(path)  # refuses one that others wrote
            lines = []
            with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
                lines = file.read().splitlines()
            _replace(path, edit(lines))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}); make it writable and try again."
        ) from error
    finally:
        os.umask(before)


@contextlib.contextmanager
def _alone(directory: str) -> Iterator[None]:
    if sys.platform == "win32":
        raise LeaseError("Draining needs Linux.")
    import fcntl

    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _replace(path: str, lines: list[str]) -> None:
    temporary = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))
        file.flush()
        os.fsync(fd)
    os.rename(temporary, path)


def _holders(target: Target, settings: Settings) -> list[str]:
    snapshot = nvml.snapshot(detail="choice", settings=settings)
    slices = (device.uuid for device in snapshot.devices if is_drained(device, (target.uuid,)))
    uuids = {target.uuid, *filter(None, slices)}
    leases = [lease for lease in live_leases(settings) if uuids.intersection(lease.gpus)]
    return [f"{lease.id} of {_plain(lease.user or str(lease.uid))}" for lease in leases]


def _plain(text: str) -> str:
    return "".join(c for c in text if c.isprintable())
