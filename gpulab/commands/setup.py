"""`gpulab setup`: the host's lease directory, made by root once and by tmpfiles.d at each boot."""

from __future__ import annotations

import argparse
import os

from gpulab.allocation.directory import set_up_host
from gpulab.config import ADMIN_FILE, HOST_LEASE_DIR
from gpulab.errors import LeaseDirectoryError

__all__ = ["add_arguments", "run"]

_TMPFILES = f"""\
# gpulab's leases: each account writes its own, nobody but root can remove another's.
d {HOST_LEASE_DIR} 1777 root root -
f {HOST_LEASE_DIR}/guard 0444 root root -
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
        _write(below(ADMIN_FILE), _CONFIG)
    except OSError as error:
        raise LeaseDirectoryError(
            f"{error.filename} cannot be written ({error.strerror}); make it writable and run setup again."
        ) from error
    where = "are now host-wide" if root == "/" else f"will be host-wide on the machine of {root}"
    print(f"Leases {where}, in {directory.path}; rules go into {below(ADMIN_FILE)}.")
    return 0


def _write(path: str, text: str) -> None:
    """Write a file that is not there yet."""
    if os.path.lexists(path):
        print(f"kept {path}")
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o644)
    print(f"wrote {path}")
