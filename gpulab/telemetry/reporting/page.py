"""How a report reads: as text in a terminal, as HTML with a small picture in a notebook."""

from __future__ import annotations

import html

from gpulab.telemetry.report import DeviceReport, Report
from gpulab.telemetry.reporting.timeline import svg
from gpulab.units import format_bytes, format_duration

__all__ = ["as_html", "as_text"]

_NOTE = "Busy is the share of time with a kernel running, of anybody's; not how much of the GPU was filled."
_CELL = "padding: 1px 12px 1px 0; text-align: left; vertical-align: top; border: none; background: none"
_LABEL = f"{_CELL}; opacity: 0.7; white-space: nowrap"


def as_text(report: Report) -> str:
    """The verdict, then the figures of each GPU."""
    lines = [_head(report), str(report.verdict)]
    for device in report.devices:
        lines.append(_title(device))
        lines += [f"  {label:<10} {value}" for label, value in _rows(device)]
    return "\n".join([*lines, _NOTE] if report.devices else lines)


def as_html(report: Report) -> str:
    """The same with a timeline; escaped, and in the page's own colours."""
    verdict = report.verdict
    parts = [
        f"<div><small>{html.escape(_head(report))}</small></div>",
        f"<div><strong>{html.escape(verdict.sentence)}</strong></div>",
    ]
    for device in report.devices:
        rows = "".join(
            f'<tr style="background: none"><td style="{_LABEL}">{html.escape(label)}</td>'
            f'<td style="{_CELL}">{html.escape(value)}</td></tr>'
            for label, value in _rows(device)
        )
        parts.append(
            f'<div style="margin-top: 8px">{html.escape(_title(device))}</div>'
            f'<div style="display: flex; flex-wrap: wrap; gap: 4px 24px; align-items: flex-start">'
            f'<table style="margin: 0; border: none">{rows}</table>{svg(report, device)}</div>'
        )
    if report.devices:
        parts.append(f'<div style="opacity: 0.7"><small>{html.escape(_NOTE)}</small></div>')
    return f'<div style="margin: 4px 0">{"".join(parts)}</div>'


def _head(report: Report) -> str:
    parts = ["GPU report", f"{_seconds(report.wall_seconds)}"]
    if report.cpu_seconds is not None:
        parts.append(f"{_seconds(report.cpu_seconds)} of CPU time")
    if report.devices:
        parts.append(f"{report.got} of {report.due} samples")
    return " · ".join([*parts, "simulated"] if report.simulated else parts)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if 1 <= seconds < 60 else format_duration(seconds)


def _title(device: DeviceReport) -> str:
    return device.label if device.name is None else f"{device.label}, {device.name}"


def _rows(device: DeviceReport) -> list[tuple[str, str]]:
    rows = [("busy", _busy(device)), ("memory", _memory(device)), ("energy", _energy(device))]
    if not device.samples:  # none was due in so short a time: then the driver was not asked
        known = (device.gpu_percent, device.own_max_bytes, device.energy_joules)
        rows = [row for row, value in zip(rows, known, strict=True) if value is not None]
    if device.braked:
        rows.append(
            (
                "held down",
                ", ".join(f"{word} {100 * share:.0f} % of the time" for word, share in device.braked),
            )
        )
    for label, link in (("PCIe", "pcie"), ("NVLink", "nvlink")):
        moved = _moved(device, link)
        rows += [(label, moved)] if moved else []
    return rows


def _busy(device: DeviceReport) -> str:
    if device.gpu_percent is None:
        return "not told by the driver"
    text = f"{device.gpu_percent:.0f} %, at most {device.gpu_max or 0:.0f} %"
    if device.others:
        own = "not told" if device.own_percent is None else f"{device.own_percent:.0f} %"
        count = "another process" if device.others == 1 else f"{device.others} other processes"
        text += f" (shared with {count}; this one's part: {own})"
    return text


def _memory(device: DeviceReport) -> str:
    if device.own_max_bytes is None:
        own = "this process's own is not told"
    elif device.own_max_bytes == 0:
        own = "none by this process"
    else:
        own = f"this process at most {format_bytes(device.own_max_bytes)}{_growth(device.own_growth_bytes)}"
    if device.memory_max_bytes is None and not device.samples:
        return own
    used, total = format_bytes(device.memory_max_bytes), format_bytes(device.memory_total_bytes)
    return f"{own}; the GPU at most {used} of {total}"


def _growth(change: int | None) -> str:
    if change is None:
        return ""
    if change == 0:
        return " (unchanged)"
    return f" ({'+' if change > 0 else '−'}{format_bytes(abs(change))})"


def _energy(device: DeviceReport) -> str:
    power = "" if device.power_watts is None else f"{device.power_watts:.0f} W"
    limit = "" if device.power_limit_watts is None else f" of {device.power_limit_watts:.0f} W"
    if device.energy_joules is None:
        return f"not known; {power}{limit} on average" if power else "not told by the driver"
    joules = device.energy_joules
    text = f"{joules / 1000:.2f} kJ" if joules >= 1000 else f"{joules:.0f} J"
    how = "by the GPU's counter" if device.energy_source == "counter" else "from its power"
    return f"{text} {how}, of all who used it" + (f"; {power}{limit} on average" if power else "")


def _moved(device: DeviceReport, link: str) -> str:
    ways = {
        "to the GPU": getattr(device, f"{link}_rx_bytes_per_second"),
        "from it": getattr(device, f"{link}_tx_bytes_per_second"),
    }
    return ", ".join(f"{rate / 1e9:.2f} GB/s {way}" for way, rate in ways.items() if rate is not None)
