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


def shown(text: str, most: int = _MAX_SHOWN) -> str:
    """What anybody may have written, without what a terminal would obey; cut to `most` characters."""
    return "".join(c if c.isprintable() else "?" for c in text)[:most]


def owner(status: os.stat_result) -> str:
    """Who owns a file, as people call the account."""
    return shown(account_name(status.st_uid) or f"user {status.st_uid}")
