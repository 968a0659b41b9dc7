"""What is being done now, as a bar in a notebook or a terminal; nothing where nobody looks."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

__all__ = ["Progress"]


class Progress:
    """A bar over the sizes, with the present step beside it."""

    def __init__(self, sizes: int, title: str, *, shown: bool) -> None:
        self._bar: Any = None
        if shown and (_in_kernel() or sys.stderr.isatty()):
            from tqdm.auto import tqdm

            self._bar = tqdm(total=sizes, desc=title, unit="size", leave=False)

    def tell(self, step: str) -> None:
        """Say what is being done now."""
        if self._bar is not None:
            self._bar.set_postfix_str(step)

    def advance(self) -> None:
        """One size is done."""
        if self._bar is not None:
            self._bar.update()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def _in_kernel() -> bool:
    """Whether this is a notebook's process; that ipykernel was imported says nothing yet."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")
