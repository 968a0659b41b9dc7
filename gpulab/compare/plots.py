"""A result as a figure. Nothing is timed here.

The figure brings its own light ground and dark ink, whatever the user's style, so that it is readable
on a light page and on a dark one.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from gpulab.compare.results.judgement import Column, column_summary, crossing, fastest_gpu
from gpulab.compare.results.tables import circumstances, format_seconds
from gpulab.compare.timing import Summary, summarize
from gpulab.plotting import GROUND, INK, Plot, style

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpulab.compare.result import Result
    from gpulab.compare.results.records import Measurement

__all__ = ["GROUND", "INK", "Plot", "draw"]

FAINT = "#5b6675"
CPU, GPU, IN, OUT = "#2f5fb3", "#2c7a3f", "#a8570e", "#8a3f8f"
"""Each has a contrast of at least 4.5 with the ground; sides also differ by marker and dashes."""


def draw(result: Result) -> Plot:
    """Median time against size in logarithms, with the interval as a band; transfers; the crossover."""
    with mpl.rc_context(style()):
        figure = Plot(figsize=(8.0, 4.8), layout="constrained")
        axes = figure.add_subplot()
        _sides(axes, result)
        _race(axes, result)
        _crossover(axes, result)
        _axes(axes, result)
        missing = _gpu_note(result)
        if missing:
            # below the axes, where it can cover nothing
            figure.supxlabel(textwrap.fill(missing.strip(), 105), fontsize=9)
        figure.description = f"{result.title}: time against {result.unit}. {missing}{result.verdict}"
    return figure


def _sides(axes: Any, result: Result) -> None:
    cpu = [(run.size, m) for run in result.runs for m in run.measurements if m.backend == run.best_cpu]
    gpu = [(run.size, m) for run in result.runs if (m := fastest_gpu(result, run)) is not None]
    _line(axes, cpu, "end_to_end", f"CPU: {_names(result, cpu)}", color=CPU, marker="o", linewidth=2)
    name = f"GPU: {_names(result, gpu)}"
    _line(axes, gpu, "end_to_end", f"{name}, end to end", color=GPU, marker="s", linewidth=2)
    _line(axes, gpu, "compute", "GPU: compute alone", color=GPU, marker="", linestyle="--")
    _line(axes, gpu, "host_to_device", "transfer to the device", color=IN, marker="^", linestyle=":")
    _line(axes, gpu, "device_to_host", "transfer back", color=OUT, marker="v", linestyle=":")


def _names(result: Result, measured: list[tuple[int, Measurement]]) -> str:
    labels = list(dict.fromkeys(result.label(measurement.backend) for _, measurement in measured))
    return labels[0] if len(labels) == 1 else "the best backend at each size"


def _line(
    axes: Any, measured: list[tuple[int, Measurement]], column: Column, label: str, **style: Any
) -> None:
    points = [(size, column_summary(measurement, column)) for size, measurement in measured]
    known = [(size, summary) for size, summary in points if summary is not None]
    if not known:
        return
    sizes = [size for size, _ in known]
    axes.plot(sizes, [summary.median for _, summary in known], label=label, **style)
    if column == "end_to_end":
        low, high = zip(*(_bounds(summary) for _, summary in known), strict=True)
        axes.fill_between(sizes, low, high, color=style["color"], alpha=0.2, linewidth=0)


def _bounds(summary: Summary) -> tuple[float, float]:
    return summary.low or summary.median, summary.high or summary.median


def _race(axes: Any, result: Result) -> None:
    """The CPU backends that lost, as small marks: how good the baseline is."""
    lost = [
        (run.size, summary.median)
        for run in result.runs
        for name, seconds in run.race.items()
        if name != run.best_cpu and (summary := summarize(seconds)) is not None
    ]
    if lost:
        sizes, medians = zip(*lost, strict=True)
        label = "other CPU backends (short race)"
        axes.plot(sizes, medians, linestyle="", marker="x", color=FAINT, markersize=5, label=label)


def _crossover(axes: Any, result: Result) -> None:
    size = crossing(result)
    if size is not None:
        axes.axvline(size, color=INK, linestyle="-.", linewidth=1, label=f"crossover: about {size:,.0f}")


def _axes(axes: Any, result: Result) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(f"number of {result.unit}")
    axes.set_ylabel("time of one call (lower is faster)")
    axes.set_title(f"{result.title}\n{textwrap.fill(circumstances(result), 90)}", fontsize=10, loc="left")
    axes.tick_params(which="both", color=INK, labelcolor=INK)  # ticks are made, and styled, only when drawn
    axes.grid(visible=True, which="major", color="#d5dae1", linewidth=0.8)
    low, high = axes.get_ylim()
    if high < 100 * low:  # less than two decades: their ends alone would be too few marks
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: _short(seconds)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    sizes = list(_measured_sizes(result))
    if sizes:
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.legend(fontsize=8.5, frameon=True, facecolor=GROUND, edgecolor="#d5dae1")
    if len(sizes) == 1:
        axes.set_xlim(sizes[0] / 10, sizes[0] * 10)


def _short(seconds: float) -> str:
    return format_seconds(seconds).replace(".00", "").replace(".0 ", " ") if seconds > 0 else ""


def _measured_sizes(result: Result) -> Iterator[int]:
    return (run.size for run in result.runs if run.measurements)


def _gpu_note(result: Result) -> str:
    """Why a side is not there; empty if it is."""
    if any(fastest_gpu(result, run) for run in result.runs):
        return ""
    if not result.runs:
        return "Nothing was measured. "
    return f"GPU: not measured. {_sentence(result.speedup_reason)}"


def _sentence(reason: str | None) -> str:
    text = (reason or "nothing is known").rstrip(".")
    return f"{text[:1].upper()}{text[1:]}. "
