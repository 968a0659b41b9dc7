"""The page of `gpulab status --watch`, laid out anew for each size of the terminal it is drawn on.

What has no room is counted in words, never left out in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpulab.commands.bars import bar, curve, plain
from gpulab.commands.watch_rows import GpuRow

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

__all__ = ["CURVE_POINTS", "Page"]

CURVE_POINTS = 20

_WHO = 32
_LAYOUTS = (
    (18, True, CURVE_POINTS, True),
    (14, True, CURVE_POINTS, True),
    (10, True, CURVE_POINTS, True),
    (10, False, CURVE_POINTS, True),
    (12, False, 0, True),
    (8, False, 0, True),
    (8, False, 0, False),
    (4, False, 0, False),
    (0, False, 0, False),
)
"""Of a bar the length; whether there are names; of a curve the length; whether there are °C and W."""
_BUSY_PERCENT, _FULL_PERCENT = 85.0, 90.0


class _Columns(NamedTuple):
    """The widths of the parts of a line; 0 for what has no room."""

    label: int
    bar: int
    name: int
    curve: int
    sensors: bool

    @property
    def before_who(self) -> int:
        name = self.name + 2 if self.name else 0
        sensors = 16 if self.sensors else 0
        recent = self.curve + 2 if self.curve else 0
        return self.label + 2 + name + 2 * self.bar + 6 + 2 + recent + 14 + 2 + sensors


class Page(NamedTuple):
    """All that is shown; rich asks it for its lines whenever the terminal is drawn."""

    title: str
    troubles: tuple[str, ...]
    scope: str
    rows: Sequence[GpuRow]
    queue: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width, height = options.max_width, options.height or console.height
        ascii_only = options.ascii_only
        for line in self._lines(width, height, console):
            line.truncate(width, overflow="ellipsis" if not ascii_only else "crop")
            line.no_wrap = True
            if ascii_only:
                line.plain = plain(line.plain)
            yield line

    def _lines(self, width: int, height: int, console: Console) -> list[Text]:
        from rich.text import Text

        top = [Text(self.title, style="bold"), *self._trouble_lines(width, height, console)]
        if self.scope and (height >= 20 or not self.rows):
            top.append(Text(self.scope, style="dim"))
        if not self.rows:
            return [*top, *self._queue_lines(height - len(top))]
        columns = _columns(self.rows, width)
        top.append(_header(columns))
        room = height - len(top)
        wanted = len(self.rows) + len(self.queue)
        waiting = (
            len(self.queue) if wanted <= room else min(len(self.queue), max(1, room // 4), max(0, room - 1))
        )
        lines = [*top, *_gpu_lines(self.rows, columns, width, room - waiting)]
        if self.queue and len(lines) + waiting < height:
            lines.append(Text())
        return [*lines, *self._queue_lines(waiting)]

    def _trouble_lines(self, width: int, height: int, console: Console) -> list[Text]:
        """Whole sentences over several lines, in a third of the page at most."""
        from rich.text import Text

        lines: list[Text] = []
        most = max(2, height // 3)
        for place, sentence in enumerate(self.troubles):
            more = list(Text(sentence, style="yellow").wrap(console, width))
            left = len(self.troubles) - place
            room = most - len(lines) - (left > 1)
            if lines and len(more) > room:
                lines.append(Text(f"… and {left} more of this kind; see `gpulab status`", style="yellow"))
                break
            if len(more) > room:  # the first is told in any case, if need be its beginning
                more = more[:room]
                more[-1].truncate(width - 1)
                more[-1].append("…")
            lines += more
        return lines

    def _queue_lines(self, room: int) -> list[Text]:
        from rich.text import Text

        if len(self.queue) <= room:
            return [Text(line) for line in self.queue]
        shown = [Text(line) for line in self.queue[: max(0, room - 1)]]
        left = len(self.queue) - len(shown)
        return [*shown, Text(f"… and {left} more wait" if shown else f"{left} wait")] if room > 0 else []


def _columns(rows: Sequence[GpuRow], width: int) -> _Columns:
    """The richest that leaves room for who has the GPU."""
    label = max(3, *(len(row.label) for row in rows))
    name = min(24, max(len(row.name) for row in rows))
    for bars, names, points, sensors in _LAYOUTS:
        columns = _Columns(label, bars, name if names else 0, points, sensors)
        if width - columns.before_who >= _WHO:
            break
    return columns


def _header(columns: _Columns) -> Text:
    from rich.text import Text

    words = [f"{'GPU':>{columns.label}}  "]
    if columns.name:
        words.append(f"{'name':<{columns.name}}  ")
    words.append(f"{'busy':<{columns.bar + 6}}  ")
    if columns.curve:
        words.append(f"{'last 10 minutes':<{columns.curve}}  ")
    words.append(f"{'memory':<{columns.bar + 14}}  ")
    if columns.sensors:
        words.append(f"{'°C':>5}{'W':>8}   ")
    return Text("".join([*words, "who"]), style="dim")


def _gpu_lines(rows: Sequence[GpuRow], columns: _Columns, width: int, room: int) -> list[Text]:
    """A line for each GPU, further ones for further holders while there is room."""
    shown = rows if len(rows) <= room else rows[: max(0, room - 1)]
    spare = room - len(shown) if len(shown) == len(rows) else 0
    lines: list[Text] = []
    for row in shown:
        more = min(len(row.who) - 1, spare)
        spare -= more
        lines += _block(row, columns, width, more)
    if len(shown) < len(rows) and room > 0:
        lines.append(_left_out(rows[len(shown) :]))
    return lines


def _left_out(rows: Sequence[GpuRow]) -> Text:
    from rich.text import Text

    free = sum(row.who == ("free",) for row in rows)
    ill = sum(not row.well for row in rows)
    counts = [f"{free} free", f"{len(rows) - free - ill} in use", *([f"{ill} in trouble"] if ill else [])]
    gpus = "1 more GPU" if len(rows) == 1 else f"{len(rows)} more GPUs"
    return Text(f"… and {gpus}: {', '.join(counts)}; a taller window shows them", style="bold")


def _block(row: GpuRow, columns: _Columns, width: int, more: int) -> Iterable[Text]:
    """The GPU's line, with the first holder and how many have no line of their own, and `more` holders."""
    from rich.text import Text

    left = len(row.who) - 1 - more
    count = f"  +{left} more" if left else ""
    shown = 1 + more
    for place, who in enumerate(row.who[:shown]):
        line = Text() if place else _figures(row, columns)
        line.append(" " * (columns.before_who - len(line)))
        line.append(who, style=_who_style(row, who))
        if place == more and count:
            line.truncate(max(0, width - len(count)), overflow="ellipsis")
            line.append(count, style="bold")
        if not row.visible:
            line.stylize("dim")
        yield line


def _who_style(row: GpuRow, who: str) -> str:
    if not row.well and who == row.who[0]:
        return "bold red"
    return "green" if who == "free" else ""


def _figures(row: GpuRow, columns: _Columns) -> Text:
    from rich.text import Text

    line = Text(f"{row.label:>{columns.label}}  ", style="")
    if columns.name:
        line.append(f"{row.name[: columns.name]:<{columns.name}}  ")
    _add_bar(
        line, row.gpu_percent, columns.bar, "green" if (row.gpu_percent or 0) < _BUSY_PERCENT else "cyan"
    )
    line.append(f" {_percent(row.gpu_percent):>5}  ")
    if columns.curve:
        line.append(f"{curve(row.curve[-columns.curve :]):>{columns.curve}}  ", style="cyan")
    share = _share(row)
    _add_bar(line, share, columns.bar, "magenta" if (share or 0) < _FULL_PERCENT else "red")
    line.append(f" {_memory(row):>13}  ")
    if columns.sensors:
        line.append(f"{_number(row.temperature_celsius):>5}{_number(row.power_watts):>8}   ")
    return line


def _add_bar(line: Text, percent: float | None, width: int, style: str) -> None:
    filled, rest = bar(None if percent is None else percent / 100, width)
    line.append(filled, style=style)
    line.append(rest, style="dim")


def _share(row: GpuRow) -> float | None:
    if row.used_bytes is None or not row.total_bytes:
        return None
    return 100 * row.used_bytes / row.total_bytes


def _memory(row: GpuRow) -> str:
    used = "n/a" if row.used_bytes is None else f"{row.used_bytes / 2**30:.1f}"
    total = "n/a" if row.total_bytes is None else f"{row.total_bytes / 2**30:.0f}"
    return "n/a" if used == total == "n/a" else f"{used}/{total} GiB"


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0f} %"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0f}"
