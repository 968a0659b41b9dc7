"""The `gpulab` command: finds the subcommand, and turns every error into one line and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

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
    "setup": "make leases host-wide (root)",
    "doctor": "what works on this machine, what does not, and the remedy",
}
"""Each is a module of gpulab.commands, imported only when it is asked for."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(64, f"{self.prog}: {message}; `{self.prog} --help` shows how it is used.\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code (see the contract in README.md)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(words)
    except GpulabError as error:
        print(f"gpulab: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has gone (`gpulab status | head -1`); keep the interpreter from saying so at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _dispatch(words: list[str]) -> int:
    if words and words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if words and words[0] == "--version":
        print(f"gpulab {gpulab.__version__}")
        return 0
    name = words[0] if words and not words[0].startswith("-") else "status"
    if name not in COMMANDS:
        print(f"gpulab: there is no command {name!r}; `gpulab --help` lists them.", file=sys.stderr)
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
