"""`gpulab lab`: JupyterLab with the GPU kernel and the notebooks, on the real machine or a simulated one.

JupyterLab runs in this very process, so that Ctrl-C, signals and exit codes are its own, and what
stands after `--` is parsed by it and wins over what is set here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from typing import Any

from gpulab import config
from gpulab.errors import GpulabError

__all__ = [
    "add_lab_arguments",
    "add_simulate_argument",
    "lab_config",
    "put_command_on_path",
    "run_lab",
    "say",
    "serve",
    "simulate",
]

START_NOTEBOOK = os.path.join("notebooks", "00_start_here.ipynb")


def add_lab_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `gpulab lab`."""
    add_simulate_argument(parser)
    parser.add_argument("jupyter", nargs="*", metavar="-- ARGUMENT", help="passed on to JupyterLab unchanged")


def add_simulate_argument(parser: argparse.ArgumentParser) -> None:
    """Declare `--simulate`, which `gpulab lab` and `gpulab dashboard` have in common."""
    parser.add_argument(
        "--simulate",
        metavar="MACHINE",
        help="a simulated machine instead of this one: NxPROFILE such as 8xh100, or a scenario file",
    )


def run_lab(args: argparse.Namespace) -> int:
    """Serve JupyterLab until it is stopped. Raises ScenarioError before anything is started."""
    simulate(args.simulate)
    put_command_on_path()
    ensure_kernelspec()
    from jupyterlab.labapp import LabApp  # type: ignore[import-untyped]

    server = LabApp.initialize_server(argv=args.jupyter, config=lab_config(os.getcwd(), args.jupyter))
    serve(server)
    return 0


def serve(server: Any) -> None:
    """Run a Jupyter server to its end, and see to it that this process ends with it.

    A request that was under way when the server stopped leaves anyio's worker thread behind, which
    waits for ever and keeps the process (seen in every second run with a page open).
    """
    try:
        server.start()
    finally:
        for thread in threading.enumerate():
            stop = getattr(thread, "stop", None)
            if thread.name == "AnyIO worker thread" and callable(stop):
                stop()


def lab_config(directory: str, arguments: list[str]) -> Any:
    """JupyterLab's settings: the start notebook if `directory` has it, and root where we are root."""
    from traitlets.config import Config

    settings = Config()
    settings.ServerApp.root_dir = directory
    if not os.path.isfile(os.path.join(directory, START_NOTEBOOK)):
        say(f"no {START_NOTEBOOK} here, so JupyterLab opens this directory; change to gpulab's clone for it.")
    elif not any(os.path.exists(argument) for argument in arguments):
        settings.LabApp.default_url = "/lab/tree/" + START_NOTEBOOK
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        say("this is root, as in a container, so JupyterLab is started with --allow-root.")
        settings.ServerApp.allow_root = True
    return settings


def simulate(text: str | None) -> None:
    """Put this process and its children on a simulated machine, if one is asked for. Raises ScenarioError."""
    text = text or config.load().simulate
    if text is None:
        return
    from gpulab.hardware import scenario

    devices = len(scenario.load(text).devices)
    if os.path.exists(text):
        text = os.path.abspath(text)  # kernels run in directories of their own
    config.export({"GPULAB_SIMULATE": text})
    say(f"the machine is simulated ({text}, {devices} GPUs): no figure of its GPUs is measured.")


def put_command_on_path() -> None:
    """Let `!gpulab` in a notebook find this environment's command, activated or not."""
    path = config.inherited().get("PATH", os.defpath)
    here = os.path.dirname(os.path.abspath(sys.executable))
    if here not in path.split(os.pathsep):
        config.export({"PATH": here + os.pathsep + path})


def ensure_kernelspec() -> None:
    """Install the kernelspec `gpulab` unless Jupyter already finds one that starts this Python."""
    from gpulab.jupyter import kernelspec

    if _starts_this_python():
        return
    with contextlib.suppress(GpulabError):  # an environment that is not ours to write
        kernelspec.install()
    if not _starts_this_python():
        prefix = os.path.join(config.load().data_dir, "jupyter")
        kernelspec.install(prefix=prefix)
        path = config.inherited().get("JUPYTER_PATH", "")
        own = os.path.join(prefix, "share", "jupyter")
        config.export({"JUPYTER_PATH": os.pathsep.join(filter(None, [own, path]))})


def _starts_this_python() -> bool:
    """Another environment's kernelspec of our name, installed for the account, would start that one."""
    from gpulab.jupyter import kernelspec

    found = {spec.name: spec.command for spec in kernelspec.listed()}
    return found.get(kernelspec.NAME) == sys.executable


def say(sentence: str) -> None:
    """One line for whoever started the command."""
    print(f"gpulab: {sentence}", file=sys.stderr, flush=True)
