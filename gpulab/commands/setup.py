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
# The administrator's rules for gpulab on this host. Accounts can tighten them, never widen them.

# UUIDs of GPUs that gpulab does not hand out:
# drained = ["GPU-11111111-2222-3333-4444-555555555555"]
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
        if not os.path.exists(below(ADMIN_FILE)):
            _write(below(ADMIN_FILE), _CONFIG)
    except OSError as error:
        raise LeaseDirectoryError(
            f"{error.filename} cannot be written ({error.strerror}); make it writable and run setup again."
        ) from error
    where = "are now host-wide" if root == "/" else f"will be host-wide on the machine of {root}"
    print(f"Leases {where}, in {directory.path}; rules go into {below(ADMIN_FILE)}.")
    return 0


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o644)
    print(f"wrote {path}")
