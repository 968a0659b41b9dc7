"""A result as a table: text for terminals, HTML for notebooks and reports. Nothing is measured here."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

from gpulab.compare.judgement import Column, Speedup, column_summary, fastest_gpu, judge, why_disturbed
from gpulab.compare.timing import undisturbed

if TYPE_CHECKING:
    from gpulab.compare.records import Measurement, SizeRun
    from gpulab.compare.result import Result

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
        rows = [HEADINGS, *((row.size, row.backend, *row.cells) for row in self.rows() if row.cells)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
        widths[0] = max([widths[0], *(len(row.size) for row in self.rows())])
        widths[1] = max([widths[1], *(len(row.backend) for row in self.rows())])
        lines = [f"{self.result.title} ({circumstances(self.result)})", "", _line(HEADINGS, widths)]
        for row in self.rows():
            cells = (row.size, row.backend, *(row.cells or (row.sentence,)))
            lines.append(_line(cells, widths))
        return "\n".join([*lines, "", *notes(self.result)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(
            f"<th style='text-align: left; padding: 0.2em 0.8em'>{escape(h)}</th>" for h in HEADINGS
        )
        body = "".join(_html_row(row) for row in self.rows())
        below = "".join(f"<li>{escape(note)}</li>" for note in notes(self.result))
        return (
            f"<div class='gpulab-compare'><p><strong>{escape(self.result.title)}</strong> "
            f"({escape(circumstances(self.result))})</p>"
            f"<table style='{STYLE}'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<ul>{below}</ul></div>"
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


def _html_row(row: Row) -> str:
    cell = "<td style='text-align: {0}; padding: 0.2em 0.8em'{2}>{1}</td>"
    parts = [cell.format("right", escape(row.size), ""), cell.format("left", escape(row.backend), "")]
    if row.cells:
        parts += [cell.format("right", escape(text), "") for text in row.cells]
    else:
        parts.append(cell.format("left", escape(row.sentence), f" colspan='{len(HEADINGS) - 2}'"))
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
            times = (f"{result.label(name)} {format_seconds(min(t))}" for name, t in run.race.items())
            lines.append(f"{where}: race of the CPU backends: {', '.join(times)}.")
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


def _parity_lines(run: SizeRun) -> list[str]:
    """One line for all pairs of which the same is to be said."""
    pairs: dict[str, list[str]] = {}
    for check in run.parity:
        finding = f"{check.state} result as {check.reference} ({check.message})."
        pairs.setdefault(finding, []).append(check.candidate)
    return [f"{', '.join(names)}: {finding}" for finding, names in pairs.items()]


def circumstances(result: Result) -> str:
    """Where and when, in one line."""
    machine = result.machine
    cores = "" if machine.usable_cores is None else f", {machine.usable_cores} usable cores"
    mark = " (simulated)" if machine.simulated and "simulated" not in (machine.gpu or "") else ""
    gpu = "" if machine.gpu is None else f", {machine.gpu}{mark}"
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
