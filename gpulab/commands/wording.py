"""What others wrote, made safe for a terminal."""

__all__ = ["clean"]

_MOST_CHARACTERS = 200


def clean(text: object, most: int = _MOST_CHARACTERS) -> str:
    """On one line, with nothing that moves a cursor, changes a colour or turns the direction of text."""
    words = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text)[: most + 1])
    return words if len(words) <= most else f"{words[: most - 1]}…"
