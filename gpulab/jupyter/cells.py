"""`%%gpu`: a report below a cell that runs exactly as it would without that line.

Three parts, none with a frame in the cell's way: an input transformer takes the line out (and keeps no
state, since editors transform what they never run), a hook before the cell reads it in the raw cell and
has the sampler watch closely, a hook after the cell shows the report. Each cell's begin and end are
noted, so that `%gpu report` can tell of the last one.
"""

from __future__ import annotations

import ast
import keyword
import logging
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from IPython.core.error import UsageError

from gpulab.errors import GpulabError, RequestError

if TYPE_CHECKING:
    from gpulab.jupyter.cell_report import Instant, Observation
    from gpulab.telemetry.report import Report

__all__ = ["Cells", "install", "last_report", "remove", "run_below"]

Result = TypeVar("Result")

_LOG = logging.getLogger(__name__)
_RUNS_IN_PLACE = re.compile(r"%%(time|timeit|prun)\b")
"""IPython's cell magics that run the cell's code without an event of its own."""

_cells: Cells | None = None


class _Cell(NamedTuple):
    raw: str
    name: str | None
    """What to bind the report to: empty for nothing, None where no report was asked for."""
    begin: Instant
    observation: Observation | None


class _Past(NamedTuple):
    begin: Instant
    end: Instant
    report: Report | None


class _Open(threading.local):
    """The cells that run now in this thread, the innermost last: a cell can run others."""

    def __init__(self) -> None:
        self.cells: list[_Cell] = []


class Cells:
    """The hooks of one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._open = _Open()
        self.last: _Past | None = None
        """The cell that ended last, of those that no other one ran."""

    def attend(self) -> None:
        """From now on."""
        self._shell.events.register("pre_run_cell", self._before)
        self._shell.events.register("post_run_cell", self._after)
        if _without_line not in self._shell.input_transformers_cleanup:
            self._shell.input_transformers_cleanup.append(_without_line)

    def leave(self) -> None:
        """No longer; twice is fine."""
        for event, hook in (("pre_run_cell", self._before), ("post_run_cell", self._after)):
            if hook in self._shell.events.callbacks[event]:
                self._shell.events.unregister(event, hook)
        if _without_line in self._shell.input_transformers_cleanup:
            self._shell.input_transformers_cleanup.remove(_without_line)
        while self._open.cells:
            _close(self._open.cells.pop())

    def _before(self, info: Any) -> None:
        from gpulab.jupyter.cell_report import Instant

        name = self._asked(info.raw_cell)
        observation = None if name is None else _attempt(self._observe)
        begin = Instant.now() if observation is None else observation.begin
        self._open.cells.append(_Cell(info.raw_cell, name, begin, observation))

    def _asked(self, raw: str) -> str | None:
        """The name in the line of a raw cell, after what IPython itself takes away before it."""
        if "%%gpu" not in raw:
            return None
        lines = f"{raw}\n".splitlines(keepends=True)
        try:
            for transform in self._shell.input_transformers_cleanup:
                if transform is _without_line:
                    break
                lines = transform(lines)
        except SyntaxError:
            return None  # IPython shows it
        while lines and _RUNS_IN_PLACE.match(lines[0]):
            lines = lines[1:]
        return _name_in(lines)

    def _observe(self) -> Observation:
        from gpulab.jupyter.cell_report import Observation

        try:
            observation = Observation()
        except KeyboardInterrupt:
            self._shell.ast_transformers.append(_Interruption(self._shell))
            raise
        if observation.interrupted:
            self._shell.ast_transformers.append(_Interruption(self._shell))
        return observation

    def _after(self, result: Any) -> None:
        from gpulab.jupyter.cell_report import Instant

        end = Instant.now()
        self._forget_interruption()
        cell = self._take(None if result is None else result.info.raw_cell)
        if cell is None:
            return
        if result is not None and result.error_before_exec is not None:
            _close(cell)  # as with wrong syntax: nothing has run
            return
        report = None
        if cell.observation is not None:
            report = _attempt(lambda: self._show(cell, end))
        if not self._open.cells and not _only_asks(cell.raw):
            self.last = _Past(cell.begin, end, report)

    def _take(self, raw: str | None) -> _Cell | None:
        """The cell that has ended, by the very text that began it; an empty one ends without a begin."""
        cells = self._open.cells
        place = next((i for i in reversed(range(len(cells))) if raw is None or cells[i].raw is raw), None)
        if place is None:
            return None
        found, lost = cells[place], cells[place + 1 :]
        del cells[place:]
        for cell in lost:
            _close(cell)
        return found

    def _forget_interruption(self) -> None:
        """It was for the cell that has ended; where that was no Python, it still waits for the next one."""
        left = self._shell.ast_transformers
        left[:] = [transformer for transformer in left if not isinstance(transformer, _Interruption)]

    def _show(self, cell: _Cell, end: Instant) -> Report | None:
        from IPython.display import display

        if cell.observation is None:
            return None
        report, no_gpu = cell.observation.end(end)
        if cell.name:
            self._shell.push({cell.name: report})
        if no_gpu is not None:
            print(f"gpulab: no report, because this kernel has no GPU: {no_gpu}", flush=True)
        else:
            display(report)  # type: ignore[no-untyped-call]
        return report


class _Interruption:
    """Stands once for the code of a cell that was interrupted while its first sample was waited for."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def visit(self, _: ast.AST) -> ast.AST:
        self._shell.ast_transformers.remove(self)
        return ast.parse("raise KeyboardInterrupt")


def install(shell: Any) -> None:
    """Look after the cells of this shell from now on."""
    global _cells  # noqa: PLW0603 - one for each process, and this module is its home
    if _cells is None:
        _cells = Cells(shell)
    _cells.attend()


def remove() -> None:
    """Let them run without us again."""
    if _cells is not None:
        _cells.leave()


def last_report() -> Report:
    """On the cell that ran last before this one. Raises RequestError if none did, and ConfigError."""
    past = None if _cells is None else _cells.last
    if past is None:
        raise RequestError("No cell has ended yet since gpulab was loaded; run one, then %gpu report.")
    if past.report is not None:
        return past.report
    from gpulab.jupyter.cell_report import look_back

    return look_back(past.begin, past.end)


def run_below(line: str, cell: str, shell: Any) -> None:
    """`%%gpu` where a program calls it, or where its line is wrong. Raises UsageError."""
    lines = [f"%%gpu {line}\n", *cell.splitlines(keepends=True)]
    if not cell.strip():
        raise UsageError("%%gpu: there is no code to report on; write it below this line.")
    if _name_in(lines) is None:
        raise UsageError(f"%%gpu takes one name to bind the report to, not {line.strip()!r}.")
    shell.run_cell("".join(lines))


def _without_line(lines: list[str]) -> list[str]:
    """The input transformer. A comment stays in the line's place: tracebacks count as the editor does."""
    if _name_in(lines) is None:
        return lines
    rest = lines[1:]
    code = next(i for i, line in enumerate(rest) if line.strip())
    if rest[code].startswith("%%"):
        return rest[code:]  # another cell magic, which has to be the first line
    return [f"# {lines[0].rstrip()}\n", *rest]


# For checks whether a cell is complete: a terminal goes on to ask for lines, as below any cell magic
_without_line.has_side_effects = True  # type: ignore[attr-defined]


def _name_in(lines: list[str]) -> str | None:
    """The name in a first line `%%gpu NAME`, or empty; None without such a line and code below it."""
    words = lines[0].partition("#")[0].split() if lines and lines[0].startswith("%%gpu") else []
    if words[:1] != ["%%gpu"] or not any(line.strip() for line in lines[1:]):
        return None
    if len(words) == 1:
        return ""
    is_name = len(words) == 2 and words[1].isidentifier() and not keyword.iskeyword(words[1])
    return words[1] if is_name else None


def _only_asks(raw: str) -> bool:
    """Whether a cell is but one `%gpu ...`: no work that one would want a report on."""
    lines = raw.split("\n")
    return all(line.lstrip().startswith("%gpu") for line in lines if line.strip())


def _close(cell: _Cell) -> None:
    if cell.observation is not None:
        cell.observation.close()


def _attempt(act: Callable[[], Result]) -> Result | None:
    """The cell and its output are not ours to disturb: what fails here is said in one line."""
    try:
        return act()
    except GpulabError as error:
        print(f"gpulab: no report on this cell: {error}", flush=True)
    except KeyboardInterrupt:
        print("gpulab: no report on this cell: it was interrupted.", flush=True)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with us, the cell runs
        _LOG.debug("the report on a cell failed", exc_info=True)
        print(
            f"gpulab: no report on this cell ({type(error).__name__}: {error}); run `gpulab doctor`.",
            flush=True,
        )
    return None
