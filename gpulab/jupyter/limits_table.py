"""What `%gpu limits` shows: for each framework what is asked and what is in force, as text and as HTML."""

from __future__ import annotations

from typing import NamedTuple

from gpulab import config
from gpulab.config import Settings
from gpulab.jupyter.page import as_html, as_text
from gpulab.limits import FrameworkState, asked, excess, process_bytes, report
from gpulab.limits.pools import CONTEXT_BYTES
from gpulab.limits.state import Cap
from gpulab.units import format_bytes

__all__ = ["LimitsOverview", "limits_overview"]

_HEADER = ("framework", "asked", "in force", "by", "state")
_BY = {"hook": "import hook", "call": "call", "variable": "environment variable", "RMM": "RMM"}
_NOTES = (
    "Limits are of each framework's memory pool in this process and cooperative; CUDA's context and "
    "libraries' workspaces come on top."
)


class LimitsOverview(NamedTuple):
    """Sentences, a table, and notes; Jupyter shows the HTML, a terminal the text."""

    sentences: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: str

    def __repr__(self) -> str:
        return as_text(self.sentences, [(_HEADER, self.rows)], self.notes)

    def _repr_html_(self) -> str:
        return as_html(self.sentences, [(_HEADER, self.rows)], self.notes)


def limits_overview() -> LimitsOverview:
    """Look at this process's frameworks, and at the driver's figure for it. Raises ConfigError."""
    settings = config.load()
    states = report()
    rows = tuple(_row(state) for state in states if state.state != "not installed")
    missing = [state.title for state in states if state.state == "not installed"]
    notes = _NOTES if not missing else f"{_NOTES} Not installed: {', '.join(missing)}."
    return LimitsOverview(_sentences(asked(), settings), rows, notes)


def _sentences(cap: Cap | None, settings: Settings) -> tuple[str, ...]:
    sentences = [_asked(cap), _counted(process_bytes(settings))]
    over = excess(settings)
    return tuple(sentences if over is None else [*sentences, over])


def _asked(cap: Cap | None) -> str:
    if cap is None:
        return "No memory limit is asked in this process; gpulab.limit_memory sets one."
    if cap.memory_bytes is None:
        return "Memory grows on demand, without a limit; gpulab.limit_memory sets one."
    whose = "gpulab.limit_memory" if cap.by_user else "this kernel's share of a GPU"
    return (
        f"{format_bytes(cap.memory_bytes)} are asked by {whose}: {format_bytes(cap.pool_bytes)} for each "
        f"framework's pool, the rest (at most {format_bytes(CONTEXT_BYTES)}) for CUDA's context."
    )


def _counted(size: int | None) -> str:
    if size is None:
        return "What this process uses by the driver's (NVML's) own count is not known."
    return f"By the driver's (NVML's) own count this process uses {format_bytes(size)}."


def _row(state: FrameworkState) -> tuple[str, ...]:
    said = f"{state.state}: {state.remedy}" if state.remedy else state.state
    in_force = "n/a" if state.in_force_bytes is None else format_bytes(state.in_force_bytes)
    wanted = "no limit" if state.asked_bytes is None else format_bytes(state.asked_bytes)
    return (state.title, wanted, in_force, _BY.get(state.by, "nothing"), said)
