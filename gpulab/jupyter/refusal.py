"""The error of a kernel that is not started because it can have no GPU (`on_full = error`)."""

from __future__ import annotations

from tornado.web import HTTPError

from gpulab.errors import GpulabError

__all__ = ["KernelRefusedError"]


class KernelRefusedError(GpulabError, HTTPError):
    """What both of the server's doors turn into our sentence.

    `POST /api/kernels` shows the message of an HTTPError only, `POST /api/sessions` (JupyterLab's)
    shows `str()` of any exception.
    """

    exit_code = 75

    def __init__(self, sentence: str) -> None:
        reason = sentence.encode("ascii", "replace").decode()  # a status line holds nothing else
        HTTPError.__init__(self, 503, sentence, reason=reason)
        self.sentence = sentence

    def __str__(self) -> str:
        return self.sentence

    def __reduce__(self) -> tuple[type[KernelRefusedError], tuple[str]]:
        return type(self), (self.sentence,)
