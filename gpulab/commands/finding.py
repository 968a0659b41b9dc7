"""What `gpulab doctor` finds, and how names that others chose are shown in it."""

from __future__ import annotations

import os
from typing import NamedTuple

from gpulab.allocation.directory import account_name

__all__ = ["Finding", "owner", "shown"]

_MAX_SHOWN = 80


class Finding(NamedTuple):
    """One thing that was looked at."""

    subject: str
    state: str
    """ok, note (works with a limit) or fail"""
    message: str


def shown(text: str) -> str:
    """A name that anybody may have chosen, without what a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in text)[:_MAX_SHOWN]


def owner(status: os.stat_result) -> str:
    """Who owns a file, as people call the account."""
    return shown(account_name(status.st_uid) or f"user {status.st_uid}")
