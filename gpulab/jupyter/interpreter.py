"""What another Python has: asked in a short child process, because nothing else can tell."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpulab.errors import RequestError

__all__ = ["EXTENSION", "Interpreter", "ask"]

EXTENSION = "--IPKernelApp.extra_extensions=gpulab"
"""Loads gpulab in the kernel beside what the user's own configuration loads."""

_SECONDS = 60.0
# Runs in any Python from 3.8, which need not have gpulab.
_QUESTION = """
import json
found = {"ipykernel": None, "gpulab": False, "why": ""}
try:
    from ipykernel.kernelspec import RESOURCES, get_kernel_dict
    found["ipykernel"], found["resources"] = get_kernel_dict(), str(RESOURCES)
    import gpulab.jupyter.extension
    found["gpulab"] = True
except Exception as error:
    found["why"] = "%s: %s" % (type(error).__name__, error)
print(json.dumps(found))
"""


class Interpreter(NamedTuple):
    """The answer of one Python."""

    kernel: dict[str, Any] | None
    """The kernelspec its own ipykernel would write; None if it has no ipykernel."""
    resources: str | None
    """Where its ipykernel keeps the logos."""
    has_gpulab: bool
    """Whether it can load gpulab's extension."""
    why: str
    """What failed, if anything did."""


def ask(command: Sequence[str]) -> Interpreter:
    """Ask the Python that `command` starts. Raises RequestError if it is none, or gives no answer."""
    shown = " ".join(command)
    try:
        # Not from the working directory: what only lies there is not installed in that Python.
        answer = subprocess.run(
            [*command, "-c", _QUESTION],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        found = json.loads(answer.stdout.strip().rpartition("\n")[2])
        return Interpreter(found["ipykernel"], found.get("resources"), found["gpulab"], found["why"])
    except OSError as error:
        raise RequestError(
            f"{shown} cannot be run ({error.strerror}); name the Python of an environment, "
            "for example its bin/python."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise RequestError(f"{shown} gave no answer within {_SECONDS:.0f} s; is it a Python?") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{shown} is no Python that can be asked; name another one.") from error
