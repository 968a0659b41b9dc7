"""`gpulab undrain`: root puts a GPU back into service."""

from __future__ import annotations

import argparse

from gpulab import config
from gpulab.commands.drain import Target, add_arguments, change, named
from gpulab.errors import RequestError
from gpulab.rules import drained_in_file, of_administrator

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    """Take it from the file beside the administrator's.

    Raises LeaseError if this is not root's call, RequestError if something else keeps it drained.
    """
    target = named(args.gpu, config.load())
    noted = [entry for entry in drained_in_file(config.drained_file()) if _names(entry, target.uuid)]
    if noted:
        change(lambda lines: [line for line in lines if line.partition("#")[0].strip() not in noted])
    _refuse_if_kept(target)
    print(f"{target} is {'back in service' if noted else 'in service already'}.")
    return 0


def _refuse_if_kept(target: Target) -> None:
    """Raise RequestError where a rule of config.toml, or the whole GPU's, still keeps it out."""
    kept = of_administrator(config.ADMIN_FILE, "").get("drained", ())
    if any(_names(entry, target.uuid) for entry in kept):
        raise RequestError(f"{target} is drained by {config.ADMIN_FILE}; remove it there.")
    parent = target.device.parent_uuid if target.device is not None else None
    if parent is None:
        return
    if any(_names(entry, parent) for entry in kept):
        raise RequestError(f"{target} belongs to a GPU drained by {config.ADMIN_FILE}; remove that there.")
    if any(_names(entry, parent) for entry in drained_in_file(config.drained_file())):
        raise RequestError(f"{target} belongs to a drained GPU; run `gpulab undrain {parent}`.")


def _names(entry: str, uuid: str) -> bool:
    return uuid.lower().startswith(entry.lower())
