"""Results as one HTML page that needs nothing else: tables, figures and circumstances inside."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from gpulab.compare.results.judgement import fastest_gpu

if TYPE_CHECKING:
    from gpulab.compare.result import Result

__all__ = ["to_html"]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { font-variant-numeric: tabular-nums; }
td, th { border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent); }
.wide { overflow-x: auto; }
img { max-width: 100%; height: auto; border-radius: 4px; }
dt { font-weight: 600; } dd { margin: 0 0 0.4rem 0; }
"""


def to_html(results: Sequence[Result]) -> str:
    """The page, as text. Everything that came from a result is escaped."""
    sections = "\n".join(_section(result) for result in results)
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>gpulab: does a GPU pay?</title><style>{_STYLE}</style></head>"
        f"<body><h1>Does a GPU pay?</h1>\n{sections}\n</body></html>\n"
    )


def _section(result: Result) -> str:
    plot = result.plot()
    picture = base64.b64encode(plot._repr_png_()).decode("ascii")
    return (
        f"<section><h2>{escape(result.title)}</h2><p>{escape(result.teaches)}</p>"
        f"<p><strong>{escape(result.verdict)}</strong></p>"
        f"<img src='data:image/png;base64,{picture}' alt='{escape(plot.description, quote=True)}'>"
        f"<div class='wide'>{result.table()._repr_html_()}</div>{_circumstances(result)}</section>"
    )


def _circumstances(result: Result) -> str:
    machine = result.machine
    facts = {
        "Origin": f"{result.origin}, {result.date}, gpulab {result.gpulab}, seed {result.seed}",
        "CPU": f"{machine.cpu or 'n/a'}; usable cores: {_known(machine.usable_cores)}; "
        f"quota: {_known(machine.core_quota)}",
        "GPU": _gpu(result),
        "Platform": f"{machine.platform}, Python {machine.python}",
    }
    for backend in result.backends:
        versions = ", ".join(f"{name} {version}" for name, version in backend.versions.items())
        more = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in backend.facts.items())
        text = "; ".join(part for part in (versions, more, backend.reason) if part)
        facts[result.label(backend.name)] = text or backend.state
    terms = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    return f"<details><summary>Circumstances</summary><dl>{terms}</dl></details>"


def _gpu(result: Result) -> str:
    machine = result.machine
    if machine.gpu is None or machine.simulated:
        return machine.gpu_reason or "n/a"
    measured = any(fastest_gpu(result, run) for run in result.runs)
    mark = "" if measured else "; not measured"
    return f"{machine.gpu}, driver {_known(machine.driver)}, CUDA {_known(machine.cuda)}{mark}"


def _known(value: object) -> str:
    return "n/a" if value is None else str(value)
