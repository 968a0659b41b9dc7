"""Figures that a notebook shows by themselves, and that are read on a light page and on a dark one.

They bring their own light ground and dark ink, whatever the user's style, and are unknown to pyplot.
"""

from __future__ import annotations

import io
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

__all__ = ["GROUND", "INK", "Plot", "style"]

GROUND, INK = "#ffffff", "#1c2430"


class Plot(Figure):
    """A Matplotlib figure that notebooks show by itself, with a text alternative in `description`."""

    description = ""

    def savefig(self, fname: Any, **options: Any) -> None:
        """As Matplotlib's, on our ground: a user's dark style would put its own behind our dark ink."""
        super().savefig(fname, **{"facecolor": self.get_facecolor(), **options})

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=120)
        return buffer.getvalue()


def style() -> dict[Any, Any]:
    """Matplotlib's own style with our ink; the user's may be made for another ground."""
    keep = {"backend", "backend_fallback", "interactive", "toolbar", "webagg.open_in_browser"}
    style = {key: value for key, value in mpl.rcParamsDefault.items() if key not in keep}
    ink = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    return {
        **style,
        **dict.fromkeys(ink, INK),
        "figure.facecolor": GROUND,
        "axes.facecolor": GROUND,
        "savefig.facecolor": GROUND,
        "savefig.transparent": False,
        "text.parse_math": False,  # a label is no formula
    }
