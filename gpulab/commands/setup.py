"""`gpulab setup`: the host's lease directory, made by root once and by tmpfiles.d at each boot."""

from __future__ import annotations

import argparse
import contextlib
import os
import stat
from collections.abc import Callable

from gpulab.allocation.directory import set_up_host
from gpulab.config import ADMIN_FILE, HOST_LEASE_DIR
from gpulab.errors import LeaseDirectoryError

__all__ = ["add_arguments", "run"]

_TMPFILES = f"""\
# gpulab's leases: each account writes its own, nobody but root can remove another's.
d {HOST_LEASE_DIR} 1777 root root -
f {HOST_LEASE_DIR}/guard 0444 root root -
"""

_SERVICE_GROUP = "gpulab"
_HOST_TMPFILES = """\
# Where `gpulab serve` publishes what it samples for all accounts. Whoever can write here is believed.
d {path} {mode} root {group} -
"""

_CONFIG = """\
# The administrator's rules for gpulab on this host. Accounts can tighten them for themselves (in their own
# ~/.config/gpulab/config.toml or by a variable such as GPULAB_IDLE_AFTER), never widen them.
# This file counts only while it is root's and nobody else can write it or replace it; if gpulab cannot
# read it, or does not understand it, kernels start without a GPU and say so. `gpulab doctor` checks it.

# The devices that gpulab may hand out, by UUID or the beginning of one (`gpulab status --json` lists
# them); a GPU's UUID stands for its MIG slices too. Without this key: all.
# devices = ["GPU-11111111", "GPU-22222222"]

# Devices out of service; who runs there is left alone. `gpulab drain` and `undrain` do the same.
# drained = ["GPU-33333333-4444-5555-6666-777777777777"]

# How many GPUs the leases of one account may hold together; a share counts as one.
# max_gpus_per_user = 2

# The most memory of one GPU that a lease may have.
# max_memory_per_lease = "40GiB"

# What a request gets that names neither a size nor a whole GPU. Without this key: a whole GPU.
# default_memory = "16GiB"

# The group whose members may ask for priority high; others' requests count as normal. Without: everybody.
# who_may_raise_priority = "gpu-leads"

# After how long a kernel that computes nothing, and whose GPU does nothing, counts as idle. Without: never.
# idle_after = "1h"

# What happens then: nothing (it is shown as idle), notice (its notebook is told), stop (told, then stopped).
# on_idle = "notice"

# How old a lease may become; an older one is treated as `on_idle` says as soon as its kernel does nothing.
# max_lease_age = "2d"

# What accounts see of each other's leases: full (login and notebook), initials, or none.
# Without this key: the login.
# names = "initials"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gpulab setup`."""
    parser.add_argument("--root", default="/", metavar="DIR", help="prepare an image under DIR instead")


def run(args: argparse.Namespace) -> int:
    """Make what is missing, and leave an existing configuration as it is. Needs root."""
    before = os.umask(0o022)  # whatever root's is: every account must be able to read the rules
    try:
        return _set_up(args.root)
    finally:
        os.umask(before)


def _set_up(root: str) -> int:
    def below(path: str) -> str:
        return os.path.join(root, path.lstrip("/"))

    try:
        directory = set_up_host(below(HOST_LEASE_DIR))
        _write(below("/etc/tmpfiles.d/gpulab.conf"), _TMPFILES)
        _set_up_service(below)
        _write(below(ADMIN_FILE), _CONFIG)
    except OSError as error:
        raise LeaseDirectoryError(
            f"{error.filename} cannot be written ({error.strerror}); make it writable and run setup again."
        ) from error
    where = "are now host-wide" if root == "/" else f"will be host-wide on the machine of {root}"
    print(f"Leases {where}, in {directory.path}; rules go into {below(ADMIN_FILE)}.")
    return 0


def _set_up_service(below: Callable[[str], str]) -> None:
    """The directory in which `gpulab serve` publishes: for its own group to write, where there is one."""
    group = _group(below("/etc/group"))
    modes = {_SERVICE_GROUP: 0o775, "root": 0o755}
    name = "root" if group is None else _SERVICE_GROUP
    path = below(f"{HOST_LEASE_DIR}/host")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        # Everybody may make a name in the directory around it, and who owns this one would be believed
        raise LeaseDirectoryError(f"{path} is no directory of root's; remove it and run setup again.")
    os.chown(path, 0, group or 0)
    os.chmod(path, modes[name])
    texts = {
        name: _HOST_TMPFILES.format(path=f"{HOST_LEASE_DIR}/host", mode=f"{mode:04o}", group=name)
        for name, mode in modes.items()
    }
    _write(below("/etc/tmpfiles.d/gpulab-host.conf"), texts[name], ours=tuple(texts.values()))


def _group(path: str) -> int | None:
    """The number of the service's group in this group file; None if there is none."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            name, *rest = line.strip().split(":")
            if name == _SERVICE_GROUP and len(rest) > 1 and rest[1].isdecimal():
                return int(rest[1])
    return None


def _write(path: str, text: str, *, ours: tuple[str, ...] = ()) -> None:
    """Write a file that is not there yet, or that still has one of `ours`."""
    if os.path.lexists(path):
        if not _has(path, tuple(other for other in ours if other != text)):
            print(f"kept {path}")
            return
        os.remove(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o644)
    print(f"wrote {path}")


def _has(path: str, texts: tuple[str, ...]) -> bool:
    with contextlib.suppress(OSError, UnicodeError), open(path, encoding="utf-8") as file:
        return file.read() in texts
    return False
