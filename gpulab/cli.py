"""The `gpulab` command: finds the subcommand, and turns every error into one line and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, TextIO

import gpulab
from gpulab.errors import GpulabError

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "status": "devices, processes and leases",
    "leases": "who holds what",
    "run": "take a GPU and become a command",
    "kernel": "install, remove or list the GPU kernel of Jupyter",
    "lab": "JupyterLab with the GPU kernel and the notebooks",
    "dashboard": "the team dashboard",
    "compare": "the same work on CPU and GPU",
    "serve": "sample the whole host, keep its history, and offer Prometheus metrics",
    "history": "who held and used what, and what the GPUs did",
    "pause": "let go of the driver, so that a GPU can be reset",
    "resume": "take the driver up again",
    "stop": "end a lease or a waiting request, by ending its processes",
    "drain": "take a GPU out of service (root)",
    "undrain": "put it back into service (root)",
    "setup": "make leases host-wide (root)",
    "doctor": "what works on this machine, what does not, and the remedy",
}
"""Each is a module of gpulab.commands, imported only when it is asked for."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(64, f"{self.prog}: {message}; `{self.prog} --help` shows how it is used.\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code (see the contract in README.md).

    Without `arguments` those of this process, which then ends here if a call into the driver hangs.
    """
    code = _guarded_run(list(sys.argv[1:] if arguments is None else arguments))
    if arguments is None and _driver_hangs():
        _flush_or_drop(sys.stderr)
        os._exit(code)  # the interpreter's own end may wait for locks that the hung thread keeps
    return code


def _guarded_run(words: list[str]) -> int:
    try:
        code = _dispatch(words)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, so that a reader who has gone or a full disk is told of below
    except GpulabError as error:
        code = error.exit_code
        _say(str(error))
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = 141
    except Exception as error:  # noqa: BLE001 - the rim: people get one line and a code, never a traceback
        code = GpulabError.exit_code
        _say(_unexpected(error))
    _flush_or_drop(sys.stdout)
    return code


def _say(message: str) -> None:
    print(f"gpulab: {' '.join(message.split())}", file=sys.stderr)


def _unexpected(error: Exception) -> str:
    """One line that is worth a report: what broke, and where in the code."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}gpulab{os.sep}" in frame.filename] or frames
    where = f" ({os.path.basename(ours[-1].filename)}:{ours[-1].lineno})" if ours else ""
    blame = "see what the system lacks" if isinstance(error, OSError) else "please report this line"
    return f"{type(error).__name__}: {error}{where}; gpulab did not expect that, {blame}."


def _flush_or_drop(stream: TextIO | None) -> None:
    """Write what is left; if nobody takes it, keep the interpreter from saying so at its end."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _driver_hangs() -> bool:
    nvml = sys.modules.get("gpulab.hardware.nvml")  # not imported: then nobody has called the driver
    return nvml is not None and bool(nvml.is_hanging())


def _dispatch(words: list[str]) -> int:
    if words and words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if words and words[0] == "--version":
        print(f"gpulab {gpulab.__version__}")
        return 0
    name = words[0] if words and not words[0].startswith("-") else "status"
    if name not in COMMANDS:
        _say(f"there is no command {name!r}; `gpulab --help` lists them.")
        return 64
    module = importlib.import_module(f"gpulab.commands.{name}")
    parser = _Parser(prog=f"gpulab {name}", description=f"{COMMANDS[name][:1].upper()}{COMMANDS[name][1:]}.")
    module.add_arguments(parser)
    try:
        args = parser.parse_args(words[1:] if words and words[0] == name else words)
    except SystemExit as exit_:
        return int(exit_.code or 0)
    return int(module.run(args))


def _overview() -> str:
    lines = [f"gpulab {gpulab.__version__}: a GPU for every notebook, and proof that it pays.", ""]
    lines += ["usage: gpulab [COMMAND] [options]     (without a command: status)", ""]
    lines += [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    return "\n".join([*lines, "", "`gpulab COMMAND --help` says more."])
