"""A simulated machine in the place of NVIDIA's library, and a command that runs any Python program on it.

`python -m gpulab.hardware.simulated SCENARIO -- COMMAND [ARGS]`, for example `8xh100 -- nvitop -1`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

from gpulab import config
from gpulab.errors import GpulabError, RequestError
from gpulab.hardware.simulation.library import Library

__all__ = ["install", "main", "uninstall"]

_USAGE = (
    "Write: python -m gpulab.hardware.simulated SCENARIO -- COMMAND [ARGS], "
    "where SCENARIO is NxPROFILE such as 8xh100, or a JSON file."
)
_lock = threading.Lock()


def install(text: str) -> None:
    """Put the machine that `text` names behind pynvml in this process. Raises ScenarioError."""
    import pynvml

    with _lock:
        if isinstance(pynvml.nvmlLib, Library) and pynvml.nvmlLib.text == text:
            return
        _put(pynvml, Library(text, lambda name: _is_symbol(pynvml, name)))


def uninstall() -> None:
    """Give pynvml back the machine's own library, which it loads when it needs it."""
    import pynvml

    with _lock:
        if isinstance(pynvml.nvmlLib, Library):
            _put(pynvml, None)


def main(arguments: Sequence[str]) -> int:
    """Run a Python program on a simulated machine: a console script, a module, a file, or `python ...`.

    Returns its exit status, 64 for wrong usage, and 127 if there is no such program.
    """
    try:
        if len(arguments) < 3 or arguments[1] != "--":
            raise RequestError(_USAGE)
        scenario = os.path.abspath(arguments[0]) if os.path.exists(arguments[0]) else arguments[0]
        install(scenario)
    except GpulabError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except ImportError:
        print(
            "The simulated machine needs pynvml; install it with `pip install nvidia-ml-py`.", file=sys.stderr
        )
        return GpulabError.exit_code
    config.export({"GPULAB_SIMULATE": scenario})  # for children that ask through gpulab
    return _run(arguments[2], list(arguments[3:]))


def _put(pynvml: Any, library: Library | None) -> None:
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml._nvmlLib_refcount = 0


def _is_symbol(pynvml: Any, name: str) -> bool:
    return name.startswith("nvml") and (hasattr(pynvml, name) or hasattr(pynvml, name.rpartition("_v")[0]))


def _run(command: str, arguments: list[str]) -> int:
    """In this process, because the simulated library lives in it."""
    if os.path.basename(command).startswith("python"):
        return _python(arguments)
    script = _console_script(command)
    sys.argv = [command, *arguments]
    if script is not None:
        return _status(script())
    if os.path.isfile(command):
        return _python([command, *arguments])
    if _is_module(command):
        return _python(["-m", command, *arguments])
    print(
        f"There is no Python program {command!r} here; name a console script, a module or a file.",
        file=sys.stderr,
    )
    return 127


def _python(arguments: list[str]) -> int:
    """As the interpreter does with `-c CODE`, `-m MODULE` or `FILE`, and what follows as arguments."""
    import runpy

    option, *rest = arguments or [""]
    if option in ("-c", "-m") and rest:
        sys.argv = [option, *rest[1:]]
        sys.path.insert(0, os.getcwd())
        if option == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - asked for
        return 0
    if not os.path.isfile(option):
        print(f"python {option}: name a file, -c CODE or -m MODULE. {_USAGE}", file=sys.stderr)
        return RequestError.exit_code
    sys.argv = [option, *rest]
    sys.path.insert(0, os.path.dirname(os.path.abspath(option)))
    runpy.run_path(option, run_name="__main__")
    return 0


def _console_script(name: str) -> Any:
    from importlib.metadata import entry_points

    found = list(entry_points(group="console_scripts", name=name))
    return found[0].load() if found else None


def _is_module(name: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _status(value: object) -> int:
    """What a console script's return value means as an exit status, as in `sys.exit`."""
    if value is None or isinstance(value, int):
        return int(value or 0)
    print(value, file=sys.stderr)
    return 1


if __name__ == "__main__":
    # the module itself, not this copy: gpulab in the program must find the library installed
    from gpulab.hardware.simulated import main as _main

    sys.exit(_main(sys.argv[1:]))
