"""A small picture of a report: utilization as an area, memory as a line, over the seconds of the cell."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpulab.hardware.throttling import brake_of
from gpulab.telemetry.report import DeviceReport, Report
from gpulab.telemetry.storing.rollups import PERIODS
from gpulab.telemetry.storing.rows import Sample

if TYPE_CHECKING:
    from gpulab.plotting import Plot

__all__ = ["figure", "svg"]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 420, 96, 34, 40, 14, 16
_BUSY, _MEMORY, _BRAKE = "#3b82f6", "#e08700", "#dc2626"
"""Blue, orange and red that are read on white and on dark grey."""

Point = tuple[float, float]


def svg(report: Report, device: DeviceReport) -> str:
    """The picture as SVG in the page's own text colour; empty if there is nothing to draw."""
    total = device.memory_total_bytes
    busy = list(_runs(device.samples, lambda s: s.gpu_percent, report))
    memory = list(_runs(device.samples, lambda s: _share(s.memory_used_bytes, total), report))
    if not busy and not memory:
        return ""
    inner = [_frame(report)]
    inner += [_area(run) for run in busy]
    inner += [_line(run, _BUSY) for run in busy]
    inner += [_line(run, _MEMORY) for run in memory]
    braked = [sample for sample in device.samples if brake_of(sample.throttle_reasons)]
    inner += [_brake_mark(sample, report) for sample in braked]
    inner += [_text(_LEFT + 132, _TOP - 4, "held down", "start", _BRAKE)] if braked else []
    said = html.escape(
        f"Utilization and memory of {device.label} over {report.wall_seconds:.1f} s", quote=True
    )
    return (
        f'<svg role="img" aria-label="{said}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" style="max-width: 100%; font: 10px sans-serif">'
        f"{''.join(inner)}</svg>"
    )


def figure(report: Report) -> Plot:
    """One panel for each GPU: utilization as an area, memory as a line, over the seconds of the cell."""
    import matplotlib as mpl  # only who asks for a figure pays for it

    from gpulab.plotting import Plot, style

    panels = max(1, len(report.devices))
    with mpl.rc_context(style()):
        drawn = Plot(figsize=(7, 0.6 + 1.8 * panels), layout="constrained")
        for axes, device in zip(drawn.subplots(panels, 1, squeeze=False)[:, 0], report.devices, strict=False):
            _panel(axes, report, device)
    names = ", ".join(device.label for device in report.devices)
    drawn.description = f"Utilization and memory of {names} over {report.wall_seconds:.1f} s"
    return drawn


def _panel(axes: Any, report: Report, device: DeviceReport) -> None:
    times = [sample.time - report.start for sample in device.samples]
    axes.fill_between(times, [_number(s.gpu_percent) for s in device.samples], alpha=0.3, color=_BUSY)
    axes.set(ylim=(0, 100), ylabel="busy (%)", title=device.label, xlim=(0, report.wall_seconds))
    beside = axes.twinx()
    beside.plot(times, [_number(s.memory_used_bytes) / 2**30 for s in device.samples], color=_MEMORY)
    beside.set(ylabel="memory (GiB)", ylim=(0, None))
    axes.set_xlabel("seconds" + (", simulated" if report.simulated else ""))


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _share(used: float | None, total: int | None) -> float | None:
    return 100 * used / total if used is not None and total else None


def _runs(samples: Sequence[Sample], read: Any, report: Report) -> Iterator[list[Point]]:
    """Stretches without a gap, in the picture's units."""
    run: list[Point] = []
    last = None
    period = max(0.2, (report.end - report.start) / max(1, report.due))
    for sample in samples:
        value = read(sample)
        if value is None or (last is not None and sample.time - last > PERIODS * period):
            if run:
                yield run
            run = []
        if value is not None:
            run.append((_x(sample.time, report), _y(value)))
        last = sample.time
    if run:
        yield run


def _x(time: float, report: Report) -> float:
    width = _WIDTH - _LEFT - _RIGHT
    return round(_LEFT + width * (time - report.start) / max(1e-9, report.end - report.start), 1)


def _y(percent: float) -> float:
    return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * min(100.0, max(0.0, percent)) / 100, 1)


def _area(run: Sequence[Point]) -> str:
    base = _HEIGHT - _BOTTOM
    points = " ".join(f"{x},{y}" for x, y in [(run[0][0], base), *run, (run[-1][0], base)])
    return f'<polygon points="{points}" fill="{_BUSY}" opacity="0.25"/>'


def _line(run: Sequence[Point], colour: str) -> str:
    if len(run) == 1:
        return f'<circle cx="{run[0][0]}" cy="{run[0][1]}" r="1.5" fill="{colour}"/>'
    points = " ".join(f"{x},{y}" for x, y in run)
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _brake_mark(sample: Sample, report: Report) -> str:
    x, y = _x(sample.time, report) - 1, _HEIGHT - _BOTTOM
    return f'<rect x="{x}" y="{y}" width="2" height="3" fill="{_BRAKE}"/>'


def _frame(report: Report) -> str:
    base, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT

    return "".join(
        [
            f'<path d="M{_LEFT} {_TOP}V{base}H{right}" fill="none" stroke="currentColor" opacity="0.4"/>',
            _text(_LEFT - 4, _TOP + 4, "100 %", "end"),
            _text(_LEFT - 4, base, "0", "end"),
            _text(_LEFT, _HEIGHT - 3, "0 s", "start"),
            _text(right, _HEIGHT - 3, f"{report.wall_seconds:.1f} s", "end"),
            _text(_LEFT + 4, _TOP - 4, "busy", "start", _BUSY),
            _text(_LEFT + 36, _TOP - 4, "memory of the GPU", "start", _MEMORY),
        ]
    )


def _text(x: float, y: float, said: str, anchor: str, colour: str = "currentColor") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{said}</text>'
