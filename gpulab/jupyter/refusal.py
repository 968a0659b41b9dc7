"""The error of a kernel that is not started because it can have no GPU (`on_full = error`)."""

from __future__ import annotations

import re
import textwrap

from tornado.web import HTTPError

from gpulab.errors import GpulabError

__all__ = ["KernelRefusedError"]

_WIDTH = 90
_WHY = re.compile(r"(?<=[(;]) ?(?=GPUs? [0-9])")
"""Where the reasons of the devices begin, as in: wait (GPU 0: leased by ann; GPU 1: in use ...)."""


class KernelRefusedError(GpulabError, HTTPError):
    """What both of the server's doors turn into our sentence.

    `POST /api/kernels` shows the message of an HTTPError only, on one line. `POST /api/sessions` shows
    `str()` of any exception; JupyterLab's dialog does not wrap it, so it comes in lines.
    """

    exit_code = 75

    def __init__(self, sentence: str) -> None:
        reason = sentence.encode("ascii", "replace").decode()  # a status line holds nothing else
        HTTPError.__init__(self, 503, sentence, reason=reason)
        self.sentence = sentence

    def __str__(self) -> str:
        return _in_lines(self.sentence)

    def __reduce__(self) -> tuple[type[KernelRefusedError], tuple[str]]:
        return type(self), (self.sentence,)


def _in_lines(sentence: str) -> str:
    """Each device's reason begins a line; a sentence without reasons is only wrapped."""
    first, *reasons = _WHY.split(sentence)
    lines = textwrap.wrap(first, _WIDTH, break_long_words=False, break_on_hyphens=False)
    for reason in reasons:
        lines += textwrap.wrap(
            reason, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False
        )
    return "\n".join(lines)
