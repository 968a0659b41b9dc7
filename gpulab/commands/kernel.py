"""`gpulab kernel`: install, remove and list the kernelspecs whose kernels get a GPU."""

from __future__ import annotations

import argparse
import sys

from gpulab.config import ON_FULL

__all__ = ["add_arguments", "run"]

_INSTALL = (
    "Write a kernelspec whose kernels get a GPU. It goes into this Python environment, or where Python is "
    "the system's into your own Jupyter directory; --user, --sys-prefix and --prefix choose the place."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `gpulab kernel install|remove|list`."""
    actions = parser.add_subparsers(dest="action", metavar="install|remove|list", required=True)
    what = "write a kernelspec whose kernels get a GPU"
    _add_install(actions.add_parser("install", help=what, description=_INSTALL))
    remove = actions.add_parser("remove", help="remove a kernelspec of gpulab's")
    remove.add_argument("--name", default="gpulab", metavar="N", help="default gpulab")
    _add_place(remove)
    actions.add_parser("list", help="list gpulab's kernelspecs")


def run(args: argparse.Namespace) -> int:
    """Do it and print one line about it. Raises RequestError and GpulabError."""
    return {"install": _install, "remove": _remove, "list": _list}[args.action](args)


def _add_install(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="N", help="default gpulab; gpulab-SOURCE with --from")
    parser.add_argument("--display-name", metavar="S", help="what JupyterLab's launcher shows")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of each kernel")
    parser.add_argument("--memory", metavar="SIZE", help="a share of a GPU for each kernel, such as 8GiB")
    parser.add_argument("--exclusive", action="store_true", help="the whole GPU, also with --memory")
    parser.add_argument(
        "--on-full",
        choices=ON_FULL,
        help="if no GPU is free: wait in the queue (default), start on the CPU, or do not start",
    )
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument(
        "--from",
        dest="source",
        metavar="KERNELSPEC",
        help="copy one, in any language, with its options if it is gpulab's",
    )
    whose.add_argument("--python", metavar="PATH", help="the Python of another environment")
    _add_place(parser)


def _add_place(parser: argparse.ArgumentParser) -> None:
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--user", action="store_true", help="for this account, in any environment")
    place.add_argument("--sys-prefix", action="store_true", help="in this Python environment")
    place.add_argument("--prefix", metavar="P", help="below P/share/jupyter")


def _prefix(args: argparse.Namespace) -> str | None:
    return sys.prefix if args.sys_prefix else args.prefix


def _install(args: argparse.Namespace) -> int:
    from gpulab.jupyter.kernelspec import Options, install

    installed = install(
        name=args.name,
        display_name=args.display_name,
        options=Options(args.gpus, args.memory, args.exclusive, args.on_full),
        source=args.source,
        python=args.python,
        user=args.user,
        prefix=_prefix(args),
    )
    print(f"Installed the kernelspec {installed.name} in {installed.path}")
    for note in installed.notes:
        print(f"gpulab: {note}", file=sys.stderr)
    return 0


def _remove(args: argparse.Namespace) -> int:
    from gpulab.jupyter.kernelspec import remove

    print(f"Removed {remove(args.name, user=args.user, prefix=_prefix(args))}")
    return 0


def _list(_: argparse.Namespace) -> int:
    from gpulab.jupyter.kernelspec import listed

    found = listed()
    if not found:
        print("No kernelspec of gpulab's is installed; `gpulab kernel install` writes one.")
    for kernel in found:
        options = " ".join(f"{name}={value}" for name, value in kernel.options.items())
        print(f"{kernel.name}  {kernel.display_name}  {kernel.command}  {options or '(server defaults)'}")
        print(f"    {kernel.path}")
    return 0
