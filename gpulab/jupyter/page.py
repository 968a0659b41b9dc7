"""How a page of sentences, tables and notes reads: as text in a terminal, as HTML in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

__all__ = ["Row", "Table", "as_html", "as_text"]

Row = tuple[str, ...]
Table = tuple[Row, Sequence[Row]]
"""The headings, and the rows below; without a row it is left out."""


def as_text(sentences: Iterable[str], tables: Iterable[Table], notes: str) -> str:
    """Columns aligned by spaces."""
    lines = [*sentences]
    for headings, rows in tables:
        lines += _aligned((headings, *rows)) if rows else []
    return "\n".join([*lines, notes]).rstrip()


def as_html(sentences: Iterable[str], tables: Iterable[Table], notes: str) -> str:
    """Escaped, and without colours of its own, so that it reads in light and dark."""
    said = "<br>".join(html.escape(sentence) for sentence in sentences)
    parts = [f"<p>{said}</p>"]
    for headings, rows in tables:
        if rows:
            body = "".join(_html_row("td", row) for row in rows)
            head = _html_row("th", headings)
            parts.append(f"<table><thead>{head}</thead><tbody>{body}</tbody></table>")
    return "".join([*parts, f"<p><small>{html.escape(notes)}</small></p>" if notes else ""])


def _aligned(table: Sequence[Row]) -> list[str]:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def _html_row(tag: str, cells: Row) -> str:
    """Only the last column, which may be long, is broken into lines."""
    broken = ["nowrap"] * (len(cells) - 1) + ["normal"]
    styled = [
        f'<{tag} style="text-align: left; white-space: {space}">{html.escape(cell)}</{tag}>'
        for space, cell in zip(broken, cells, strict=True)
    ]
    return f"<tr>{''.join(styled)}</tr>"
