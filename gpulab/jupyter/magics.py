"""`%gpu`: what this kernel has, why, and who else is there; take a GPU, give it back, report on a cell."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class

from gpulab.errors import GpulabError
from gpulab.jupyter import cells
from gpulab.jupyter.attendant import install

__all__ = ["GpuMagics"]

_HELP = """\
%gpu                   what this kernel has and why, who else uses the GPUs, and who waits
%gpu acquire [options] take a GPU now, before CUDA starts in this kernel
%gpu wait [options]    wait in the queue until it is this kernel's turn; interrupt the kernel to go on without
%gpu explain [options] every GPU with its place and reason, for what this kernel asks for or for the options
    --gpus N           how many (1)
    --memory SIZE      a share of a GPU, for example 8GiB; without it the whole GPU
    --exclusive        the whole GPU, also with --memory
    --policy NAME      how GPUs are chosen
    --priority NAME    low, normal or high: who is served first
    --wait SECONDS     only acquire: how long to wait in the queue (0); interrupt the kernel to stop waiting
%gpu release           give the GPU back, if this kernel has not used it, or leave the queue
%gpu limits            what each framework's memory pool is limited to
%gpu report            what the cell that ran last did to the GPU, by the samples that there are
%%gpu [NAME]           as a cell's first line: that report below its output, from five samples a second;
                       NAME is bound to it: it has .verdict, .to_dict() and .plot()
%gpu help              this list"""
_COMMANDS = "%gpu, %gpu acquire, wait, explain, release, limits, report and help"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%gpu: {message}; %gpu help lists what there is.")


@magics_class
class GpuMagics(Magics):
    """The magics `%gpu` and `%%gpu`."""

    @line_cell_magic
    def gpu(self, line: str, cell: str | None = None) -> object:
        """%gpu: what has this kernel got, why, and who else; `%gpu help` lists the rest.

        %%gpu [NAME]: run the cell, then report on what it did to the GPU; NAME is bound to the report.
        """
        if cell is not None:
            cells.run_below(line, cell, self.shell)
            return None
        command, *words = _split(line) or ["show"]
        run = _COMMAND.get(command)
        if run is None:
            raise UsageError(f"%gpu has no {command!r}; there are {_COMMANDS}.")
        try:
            return run(words, self.shell)
        except GpulabError as error:
            sys.stdout.flush()  # two streams: only flushed in turn do they stay in order
            print(f"gpulab: {error}", file=sys.stderr, flush=True)
        return None

    @classmethod
    def remove_from(cls, shell: Any) -> None:
        """Unregister the magics."""
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop("gpu", None)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"%gpu: {error}; close what was opened.") from None


def _show(words: list[str], _: Any) -> None:
    from IPython.display import display

    from gpulab.jupyter.overview import overview

    _Parser(prog="%gpu", add_help=False).parse_args(words)
    display(overview())  # type: ignore[no-untyped-call]


def _acquire(words: list[str], shell: Any) -> None:
    from gpulab.jupyter import asking

    parser = _asking_parser("acquire")
    parser.add_argument("--wait", default="0")
    asking.acquire(parser.parse_args(words), install(shell))


def _wait(words: list[str], shell: Any) -> None:
    from gpulab.jupyter import asking

    asking.wait(_asking_parser("wait").parse_args(words), install(shell))


def _explain(words: list[str], _: Any) -> None:
    from gpulab.jupyter import asking

    asking.explain(_asking_parser("explain").parse_args(words))


def _asking_parser(command: str) -> _Parser:
    from gpulab.jupyter.asking import add_options

    parser = _Parser(prog=f"%gpu {command}", add_help=False)
    add_options(parser)
    return parser


def _release(words: list[str], _: Any) -> None:
    from gpulab.allocation.session import current
    from gpulab.jupyter import turn

    _Parser(prog="%gpu release", add_help=False).parse_args(words)
    lease, waits = current(), turn.current()
    if waits is not None:
        waits.give_up()
        print("gpulab: this kernel has left the queue; %gpu wait takes a new place.")
        return
    if lease is None:
        print("gpulab: this kernel has no GPU to give back; %gpu acquire takes one.")
        return
    lease.release()
    print(f"gpulab: lease {lease.id} is given back, and CUDA sees no GPU here; %gpu acquire takes one again.")


def _limits(words: list[str], _: Any) -> None:
    from IPython.display import display

    from gpulab.jupyter.limits_table import limits_overview

    _Parser(prog="%gpu limits", add_help=False).parse_args(words)
    display(limits_overview())  # type: ignore[no-untyped-call]


def _report(words: list[str], _: Any) -> object:
    _Parser(prog="%gpu report", add_help=False).parse_args(words)
    return cells.last_report()


def _help(words: list[str], _: Any) -> None:
    _Parser(prog="%gpu help", add_help=False).parse_args(words)
    print(_HELP)


_COMMAND: dict[str, Callable[[list[str], Any], object]] = {
    "show": _show,
    "acquire": _acquire,
    "wait": _wait,
    "explain": _explain,
    "release": _release,
    "limits": _limits,
    "report": _report,
    "help": _help,
}
