"""Bars and small curves out of characters: Unicode blocks, or ASCII where a terminal has no others."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["bar", "curve", "plain"]

_EIGHTHS = " ▏▎▍▌▋▊▉"
_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII = str.maketrans("·…°×█▉▊▋▌▍▎▏─▁▂▃▄▅▆▇", "|~ x########-._-~=+*")


def bar(fraction: float | None, width: int) -> tuple[str, str]:
    """The filled part of a bar and the rest of it, `width` characters together; unknown is blank."""
    if fraction is None:
        return "", " " * width
    eighths = round(max(0.0, min(1.0, fraction)) * width * 8)
    if fraction > 0 and width:
        eighths = max(1, eighths)  # a little is not nothing
    full, part = divmod(eighths, 8)
    filled = "█" * full + (_EIGHTHS[part] if part else "")
    return filled, "─" * (width - len(filled))


def curve(values: Sequence[float | None]) -> str:
    """A character for each value from 0 to 100; a gap is blank, 0 the lowest block."""
    return "".join(
        " " if value is None else _LEVELS[min(7, max(0, int(value * 8 / 100)))] for value in values
    )


def plain(text: str) -> str:
    """The same text in ASCII, as long as before."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
