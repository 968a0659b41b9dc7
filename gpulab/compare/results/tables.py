"""A result as a table: text for terminals, HTML for notebooks and reports. Nothing is measured here."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

from gpulab.compare.results.judgement import (
    Column,
    Speedup,
    column_summary,
    fastest_gpu,
    judge,
    why_disturbed,
)
from gpulab.compare.timing import summarize, undisturbed

if TYPE_CHECKING:
    from gpulab.compare.result import Result
    from gpulab.compare.results.records import Measurement, SizeRun

__all__ = ["Table", "circumstances", "format_seconds", "notes"]

HEADINGS = ("size", "backend", "repeats", "to device", "compute", "to host", "end to end", "95 % interval")
COLUMNS: tuple[Column, ...] = ("host_to_device", "compute", "device_to_host")
STYLE = "border-collapse: collapse; margin: 0.5em 0"


class Row(NamedTuple):
    """One line: cells, or a sentence in place of figures."""

    size: str
    backend: str
    cells: tuple[str, ...] = ()
    sentence: str = ""


class Table:
    """Medians of every backend at every size."""

    def __init__(self, result: Result) -> None:
        self.result = result

    def rows(self) -> list[Row]:
        """One for each size and backend that was measured or should have been."""
        rows: list[Row] = []
        for run in self.result.runs:
            rows += self._rows_of(run, said={row.sentence for row in rows})
        return rows

    def _rows_of(self, run: SizeRun, said: set[str]) -> list[Row]:
        size = f"{run.size:,}"
        if run.state == "not_run":
            return [Row(size, "", sentence=f"not run: {run.reason}")]
        rows = [Row(size, self.result.label(m.backend), _cells(m)) for m in run.measurements]
        for name, reason in run.failures.items():
            rows.append(Row(size, self.result.label(name), sentence=reason))
        for backend in self.result.backends:
            if backend.side == "gpu" and backend.state != "ready" and backend.name not in run.failures:
                sentence = f"not measured: {backend.reason}"
                rows.append(Row(size, backend.title, sentence="as above" if sentence in said else sentence))
        return rows or [Row(size, "", sentence=run.reason)]

    def __str__(self) -> str:
        headings, shown = _without_empty_columns(self.rows())
        rows = [headings, *((row.size, row.backend, *row.cells) for row in shown if row.cells)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(headings))]
        widths[0] = max([widths[0], *(len(row.size) for row in shown)])
        widths[1] = max([widths[1], *(len(row.backend) for row in shown)])
        lines = [f"{self.result.title} ({circumstances(self.result)})", "", _line(headings, widths)]
        for row in shown:
            cells = (row.size, row.backend, *(row.cells or (row.sentence,)))
            lines.append(_line(cells, widths))
        return "\n".join([*lines, "", *notes(self.result)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        headings, shown = _without_empty_columns(self.rows())
        head = "".join(_html_cell("th", text, column) for column, text in enumerate(headings))
        body = "".join(_html_row(row, len(headings)) for row in shown)
        below = "".join(f"<li>{escape(note)}</li>" for note in notes(self.result))
        return (
            f"<div class='gpulab-compare'><p><strong>{escape(self.result.title)}</strong> "
            f"({escape(circumstances(self.result))})</p>"
            f"<div style='overflow-x: auto'><table style='{STYLE}'><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table></div><ul>{below}</ul></div>"
        )


def _cells(measurement: Measurement) -> tuple[str, ...]:
    kept, count = len(undisturbed(measurement.samples)), len(measurement.samples)
    columns = [column_summary(measurement, column) for column in COLUMNS]
    total = column_summary(measurement)
    interval = "n/a"
    if total is not None and total.low is not None and total.high is not None:
        interval = f"{format_seconds(total.low)} to {format_seconds(total.high)}"
    return (
        f"{count}" if kept == count else f"{kept} of {count}",
        *("" if column is None else format_seconds(column.median) for column in columns),
        "n/a" if total is None else format_seconds(total.median),
        interval,
    )


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    figures = len(cells) == len(widths)
    parts = [
        cell.ljust(width) if column == 1 or (column > 1 and not figures) else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=False))
    ]
    return "  ".join(parts).rstrip()


def _without_empty_columns(rows: list[Row]) -> tuple[tuple[str, ...], list[Row]]:
    """The headings and rows without what no row has: transfers, for one, where no GPU was measured."""
    measured = [row.cells for row in rows if row.cells]
    kept = [column for column in range(len(HEADINGS) - 2) if any(cells[column] for cells in measured)]
    if not measured:
        return HEADINGS, rows
    headings = (*HEADINGS[:2], *(HEADINGS[2 + column] for column in kept))
    return headings, [row._replace(cells=tuple(row.cells[c] for c in kept if row.cells)) for row in rows]


def _html_cell(tag: str, text: str, column: int, columns: int = 1) -> str:
    """Aligned as its column is, heading or figure; only a sentence, which spans columns, may wrap."""
    align = "left" if column == 1 or columns > 1 else "right"
    wrap, span = ("normal", f" colspan='{columns}'") if columns > 1 else ("nowrap", "")
    style = f"text-align: {align}; white-space: {wrap}; padding: 0.2em 0.8em"
    return f"<{tag} style='{style}'{span}>{escape(text)}</{tag}>"


def _html_row(row: Row, columns: int) -> str:
    cells = (row.size, row.backend, *row.cells)
    parts = [_html_cell("td", text, column) for column, text in enumerate(cells)]
    if not row.cells:
        parts.append(_html_cell("td", row.sentence, 2, columns - 2))
    return f"<tr>{''.join(parts)}</tr>"


def notes(result: Result) -> list[str]:
    """What belongs below the figures: parity, the speedup at each size or why there is none, the verdict."""
    lines = []
    for run in result.runs:
        where = f"{run.size:,} {result.unit}"
        if run.facts:
            facts = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in run.facts.items())
            lines.append(f"{where}: {facts}.")
        if run.race:
            lines.append(f"{where}: {_race_line(result, run)}")
        lines += [f"{where}: {line}" for line in _parity_lines(run)]
        disturbed = (why_disturbed(measurement) for measurement in run.measurements)
        lines += [f"{where}: {reason}." for reason in disturbed if reason]
        found = judge(result, run)
        if isinstance(found, Speedup):
            interval = f"{found.low:.3g} to {found.high:.3g}"
            lines.append(f"{where}: speedup {found.value:.3g} ({interval}), transfers included.")
        elif fastest_gpu(result, run) is not None and f"{where}: {found}." not in lines:
            lines.append(f"{where}: no speedup is stated: {found}.")
    if result.interrupted:
        lines.append("Interrupted: what was measured until then is shown.")
    return [*lines, result.verdict]


def _race_line(result: Result, run: SizeRun) -> str:
    """Medians, as the plot has them; few repeats, so they need not lie within the measured intervals."""
    found = {name: summarize(seconds) for name, seconds in run.race.items()}
    medians = {name: summary.median for name, summary in found.items() if summary is not None}
    times = ", ".join(f"{result.label(name)} {format_seconds(median)}" for name, median in medians.items())
    repeats = max(len(seconds) for seconds in run.race.values())
    short = f"{repeats} repeat{'' if repeats == 1 else 's'}"
    return f"short race of the CPU backends to choose the best, medians of {short}: {times}."


def _parity_lines(run: SizeRun) -> list[str]:
    """One line for all pairs of which the same is to be said."""
    pairs: dict[str, list[str]] = {}
    for check in run.parity:
        finding = f"{check.state} result as {check.reference} ({check.message})."
        pairs.setdefault(finding, []).append(check.candidate)
    return [f"{', '.join(names)}: {finding}" for finding, names in pairs.items()]


def circumstances(result: Result) -> str:
    """Where and when, in one line; the GPU only if something was measured on it."""
    machine = result.machine
    cores = "" if machine.usable_cores is None else f", {machine.usable_cores} usable cores"
    mark = " (simulated)" if machine.simulated and "simulated" not in (machine.gpu or "") else ""
    measured = any(fastest_gpu(result, run) for run in result.runs)
    gpu = f", {machine.gpu}{mark}" if machine.gpu is not None and measured else ""
    origin = {"measured": "measured", "recorded": "recorded", "example": "example, not measured,"}[
        result.origin
    ]
    return f"{origin} {result.date[:10]} on {machine.cpu or 'an unknown CPU'}{cores}{gpu}"


def format_seconds(seconds: float) -> str:
    """Three digits: `1.23 ms`, `456 ms`, `7.89 s`, `93.0 us`."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{_three_digits(seconds / factor)} {unit}"
    return f"{_three_digits(seconds / 1e-9)} ns"


def _three_digits(number: float) -> str:
    return f"{number:.0f}" if number >= 99.95 else f"{number:.1f}" if number >= 9.995 else f"{number:.2f}"
