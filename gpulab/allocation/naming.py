"""What people may know of each other: the administrator's `names`, applied wherever a holder is shown."""

import os
import re

from gpulab.allocation.directory import account_name
from gpulab.allocation.records import LeaseRecord

__all__ = ["HIDDEN", "named", "public_login", "shown_login"]

HIDDEN = "another account"
"""Who holds a claim where names are not told."""


def named(record: LeaseRecord, names: str | None) -> LeaseRecord:
    """The claim as this process may show it: one's own in full, another's as `names` says."""
    if record.uid == os.getuid():
        return record
    notebook, kernel = (record.notebook, record.kernel_id) if names == "full" else (None, None)
    login = record.user or f"uid {record.uid}"
    shown = shown_login(login, names)
    alias = None if shown == login else shown
    return record._replace(alias=alias, notebook=notebook, kernel_id=kernel)


def shown_login(login: str | None, names: str | None) -> str | None:
    """A login as `names` says: in full (also if it says nothing), its initials, or HIDDEN.

    One's own is told in full, and root, who made the rule, is told all.
    """
    if login is None or os.getuid() == 0 or login == account_name(os.getuid()):
        return login
    return public_login(login, names)


def public_login(login: str, names: str | None) -> str:
    """A login as `names` lets everybody know it, whoever this process belongs to."""
    if names in (None, "full"):
        return login
    if names != "initials":
        return HIDDEN
    return "".join(f"{part[0]}." for part in re.split(r"[^A-Za-z0-9]+", login) if part) or HIDDEN
