"""`%gpu`: what this kernel has, why, and who else is there; take and give back a GPU from a cell."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class

from gpulab.errors import GpulabError

__all__ = ["GpuMagics"]

_HELP = """\
%gpu                   what this kernel has, why, and who else uses the GPUs
%gpu acquire [options] take a GPU now, before CUDA starts in this kernel
    --gpus N           how many (1)
    --memory SIZE      a share of a GPU, for example 8GiB; without it the whole GPU
    --exclusive        the whole GPU, also with --memory
    --policy NAME      how GPUs are chosen
    --wait SECONDS     how long to wait for a free one (0); interrupt the kernel to stop waiting
%gpu release           give the GPU back, if this kernel has not used it
%gpu help              this list"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%gpu: {message}; %gpu help lists what there is.")


@magics_class
class GpuMagics(Magics):
    """The line magic `%gpu`."""

    @line_magic
    def gpu(self, line: str) -> None:
        """What has this kernel got, why, and who else; `%gpu help` lists the rest."""
        command, *words = _split(line) or ["show"]
        run = {"show": _show, "acquire": _acquire, "release": _release, "help": _help}.get(command)
        if run is None:
            raise UsageError(f"%gpu has no {command!r}; there are %gpu, %gpu acquire, release and help.")
        try:
            run(words)
        except GpulabError as error:
            sys.stdout.flush()  # two streams: only flushed in turn do they stay in order
            print(f"gpulab: {error}", file=sys.stderr, flush=True)

    @classmethod
    def remove_from(cls, shell: Any) -> None:
        """Unregister the magic."""
        shell.magics_manager.magics["line"].pop("gpu", None)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"%gpu: {error}; close what was opened.") from None


def _show(words: list[str]) -> None:
    from IPython.display import display

    from gpulab.jupyter.overview import overview

    _Parser(prog="%gpu", add_help=False).parse_args(words)
    display(overview())  # type: ignore[no-untyped-call]


def _acquire(words: list[str]) -> None:
    from gpulab import config
    from gpulab.allocation.directory import find
    from gpulab.allocation.session import acquire
    from gpulab.jupyter.wording import ownership

    options = _acquire_parser().parse_args(words)
    lease = acquire(
        options.gpus,
        memory=options.memory,
        exclusive=options.exclusive,
        policy=options.policy,
        wait=options.wait,
    )
    print(f"gpulab: {ownership(lease, find(config.load()).scope)}")


def _acquire_parser() -> _Parser:
    parser = _Parser(prog="%gpu acquire", add_help=False)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--memory")
    parser.add_argument("--exclusive", action="store_true")
    parser.add_argument("--policy")
    parser.add_argument("--wait", default="0")
    return parser


def _release(words: list[str]) -> None:
    from gpulab.allocation.session import current

    _Parser(prog="%gpu release", add_help=False).parse_args(words)
    lease = current()
    if lease is None:
        print("gpulab: this kernel has no GPU to give back; %gpu acquire takes one.")
        return
    lease.release()
    print(f"gpulab: lease {lease.id} is given back, and CUDA sees no GPU here; %gpu acquire takes one again.")


def _help(words: list[str]) -> None:
    _Parser(prog="%gpu help", add_help=False).parse_args(words)
    print(_HELP)
