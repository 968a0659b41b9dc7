"""What `%gpu` shows: this kernel's GPU and why, who else is there, and who waits, as text and as HTML."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import Any, NamedTuple

from gpulab import config
from gpulab.allocation import leases, session
from gpulab.allocation.naming import shown_login
from gpulab.allocation.records import LeaseRecord
from gpulab.allocation.session import Lease
from gpulab.allocation.status import status, unlisted
from gpulab.allocation.tickets import waiting_now
from gpulab.config import Settings
from gpulab.hardware.devices import Snapshot
from gpulab.hardware.observe import observe
from gpulab.jupyter import turn
from gpulab.jupyter.page import Table, as_html, as_text
from gpulab.jupyter.wording import SCOPES, asked, no_gpu, short_uuid
from gpulab.units import format_bytes, format_duration

__all__ = ["HOLDERS", "Overview", "holder_rows", "notes", "overview", "queue_rows"]

HOLDERS = ("GPU", "device", "UUID", "who")
_HEADER = (*HOLDERS[:3], "busy", "memory in use", HOLDERS[3])
_QUEUE = ("place", "waits for", "priority", "since", "who")
_MOST_ROWS = 12
_SELF = "this kernel"


class Overview(NamedTuple):
    """Sentences, a table of the GPUs, one of those who wait, and notes; a terminal shows the text of it."""

    sentences: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: str
    queue: tuple[tuple[str, ...], ...] = ()
    header: tuple[str, ...] = _HEADER

    def __repr__(self) -> str:
        return as_text(self.sentences, self._tables(), self.notes)

    def _repr_html_(self) -> str:
        return as_html(self.sentences, self._tables(), self.notes)

    def _tables(self) -> tuple[Table, ...]:
        return (_QUEUE, self.queue), (self.header, self.rows)


def overview() -> Overview:
    """Look at this process, the devices and the leases now. Raises ConfigError."""
    settings = config.load()
    snapshot = observe(settings=settings)
    report = status(snapshot, leases.live_leases(settings), settings)
    mine, waits = session.current(), turn.current()
    rows = tuple(_row(device, report, mine) for device in report["devices"])
    sentences = _mine(mine, snapshot, settings.no_gpu_reason) if waits is None else waits.tell()
    queue = queue_rows(settings, None if waits is None else waits.id)
    return Overview(sentences, rows, notes(snapshot, report["lease_scope"]), queue)


def holder_rows(report: dict[str, Any], mine: Lease | None) -> tuple[tuple[str, ...], ...]:
    """The GPUs and who has them, without figures that grow old."""
    rows = (_row(device, report, mine) for device in report["devices"])
    return tuple((*row[:3], row[5]) for row in rows)


def queue_rows(settings: Settings, own: str | None) -> tuple[tuple[str, ...], ...]:
    """Who waits, in the order of service; `own` is this kernel's ticket."""
    tickets = waiting_now(settings)
    rows = [_waiter(place, ticket, own, settings) for place, ticket in enumerate(tickets, 1)]
    shown = rows[:_MOST_ROWS] + [row for row in rows[_MOST_ROWS:] if row[4] == _SELF]
    left = len(rows) - len(shown)
    return (*shown, *([("…", f"and {left} more", "", "", "")] if left else []))


def _waiter(place: int, ticket: LeaseRecord, own: str | None, settings: Settings) -> tuple[str, ...]:
    who = _SELF
    if ticket.id != own:
        login = shown_login(ticket.user, None if ticket.uid == _uid() else settings.names)
        what = os.path.basename(ticket.notebook) if ticket.notebook else f"process {ticket.pid or 'n/a'}"
        who = f"{login or ticket.uid} ({what})" + ("" if ticket.answers else ", does not answer now")
    since = datetime.fromtimestamp(ticket.since).astimezone().strftime("%H:%M")
    wanted = asked(ticket.count, ticket.mode, ticket.memory_bytes)
    return str(place), wanted, ticket.priority, since, who


def _uid() -> int | None:
    return os.getuid() if hasattr(os, "getuid") else None


def _mine(mine: Lease | None, snapshot: Snapshot, reason: str | None) -> tuple[str, ...]:
    if mine is None:
        told = (
            turn.last_words()
            or reason
            or snapshot.driver.message
            or "it holds no lease; `%gpu acquire` takes a GPU."
        )
        works = "Everything that needs no GPU works, and gpulab.compare measures the CPU side."
        return (_capital(no_gpu(told)), works)
    share = f"{format_bytes(mine.memory_bytes)} of " if mine.mode == "shared" else ""
    named = " and ".join(_name(uuid, snapshot) for uuid in mine.gpus)
    sentences = [f"This kernel has {share}{named} ({mine.mode}), lease {mine.id}."]
    if mine.reason:
        sentences.append(f"Why {'this one' if len(mine.gpus) == 1 else 'these'}: {mine.reason}.")
    if snapshot.driver.message:  # a pause, or a driver that fails: why there are no figures
        sentences.append(snapshot.driver.message)
    return tuple(sentences)


def _name(uuid: str, snapshot: Snapshot) -> str:
    device = snapshot.device(uuid)
    if device is None:
        return short_uuid(uuid)
    return f"GPU {device.index}, {device.name or 'unnamed'}, {short_uuid(uuid)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _row(device: dict[str, Any], report: dict[str, Any], mine: Lease | None) -> tuple[str, ...]:
    index = f"{device['index']} {'MIG' if device['kind'] == 'mig' else ''}".rstrip()
    busy = device["utilization"]["gpu_percent"]
    memory = device["memory"]
    return (
        index,
        device["name"] or "n/a",
        short_uuid(device["uuid"] or "n/a"),
        "n/a" if busy is None else f"{busy:.0f} %",
        f"{format_bytes(memory['used_bytes'])} of {format_bytes(memory['total_bytes'])}",
        "; ".join(_who(device, report, mine)),
    )


def _who(device: dict[str, Any], report: dict[str, Any], mine: Lease | None) -> list[str]:
    if device["state"] != "ok":
        return [device["message"] or device["state"]]
    if report["leases"] is None:
        return ["unknown: the leases cannot be read"]
    found = [
        _holder(lease, device["uuid"], mine) for lease in report["leases"] if lease["id"] in device["leases"]
    ]
    if device["drained"]:
        found.append("taken out of service by the administrator")
    if device["processes"] is None:
        return [*found, "its processes cannot be listed"]
    strangers = [p for p in device["processes"] if p["lease"] is None and p["type"] == "compute"]
    found += [_stranger(process) for process in strangers if process["pid"] != os.getpid()]
    if not found and (held := unlisted(device)):
        found.append(f"{format_bytes(held)} in use by what the driver does not list")
    return found or ["free"]


def _holder(lease: dict[str, Any], uuid: str, mine: Lease | None) -> str:
    if mine is not None and lease["id"] == mine.id:
        return f"this kernel, as cuda:{mine.gpus.index(uuid)}"
    share = f"{format_bytes(lease['memory_bytes'])} " if lease["mode"] == "shared" else ""
    where = os.path.basename(lease["notebook"]) if lease["notebook"] else f"process {lease['pid'] or 'n/a'}"
    clock = datetime.fromisoformat(lease["since"]).astimezone().strftime("%H:%M")
    who = lease["user"] or f"uid {lease['uid']}"
    return f"{share}leased by {who} ({where}) since {clock}"


def _stranger(process: dict[str, Any]) -> str:
    who = process["user"] or "another namespace"
    return f"{process['command'] or 'a process'} ({process['pid']} of {who}) without a lease"


def notes(snapshot: Snapshot, scope: str | None, *, figures: bool = True) -> str:
    """Where the figures come from, and for whom the leases hold."""
    age = format_duration(max(0.0, time.time() - snapshot.time))
    source = "the sampler" if snapshot.source == "sampler" else "NVML"
    told = [f"figures from {source}, {age} old"] if snapshot.devices and figures else []
    told.append(SCOPES.get(scope or "", "no leases here"))
    if snapshot.simulated:
        told.append("simulated machine, no real GPU")
    return _capital("; ".join(told) + ".")
