"""A ranking in words: each device with its verdict and its reason."""

from collections.abc import Iterable
from typing import NamedTuple

from gpulab.hardware.devices import Device

__all__ = ["Candidate", "explain", "reasons"]


class Candidate(NamedTuple):
    """A device, whether it can serve the request now, and why."""

    device: Device
    verdict: str
    """free, kept (for those who wait longer), taken, quota (its asker holds enough), never"""
    reason: str
    score: tuple[float, ...] = ()
    label: str = ""
    """The index; a MIG slice of GPU 0 is 0.0, 0.1 and so on."""
    policy: str = "idlest"

    @property
    def fits(self) -> bool:
        return self.verdict == "free"

    @property
    def usable(self) -> bool:
        """Whether it could serve the request once it is free."""
        return self.verdict != "never"


def explain(candidates: tuple[Candidate, ...]) -> list[str]:
    """The ranking for people: a line that names the policy, then one for each device, best first."""
    if not candidates:
        return ["There is no GPU to choose from; `gpulab doctor` says why."]
    rows = [
        (
            f"{'MIG' if c.device.kind == 'mig' else 'GPU'} {c.label}",
            c.device.name or "unnamed",
            _short(c.device.uuid),
            c.verdict,
            c.reason.removeprefix(f"{c.verdict} ").removeprefix(f"{c.verdict}, "),
        )
        for c in candidates
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]])
        for row in rows
    ]
    return [f"By policy {candidates[0].policy}, best first:", *lines]


def _short(uuid: str | None) -> str:
    """Enough to tell devices apart, and to name one with `uuid:`."""
    if uuid is None:
        return "-"
    _, slash, instance = uuid.partition("/")
    return f"{uuid[:16]}…{slash}{instance}" if slash else uuid[:12]


def reasons(candidates: Iterable[Candidate]) -> str:
    """Each reason once with the devices it holds for, in brackets; empty if there are none."""
    by_reason: dict[str, list[str]] = {}
    for candidate in candidates:
        by_reason.setdefault(candidate.reason.rstrip("."), []).append(candidate.label)
    shown = [
        f"GPU{'s' if len(labels) > 1 else ''} {', '.join(labels)}: {reason}"
        for reason, labels in by_reason.items()
    ]
    return f" ({'; '.join(shown)})" if shown else ""
