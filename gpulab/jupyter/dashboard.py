"""`gpulab dashboard`: every GPU of this machine and its holder, live, as a web page for the team.

A Jupyter server with Voila and nothing else. Each viewer's page has a small kernel on the CPU, which
is ended a minute after the page has gone. The kernels run as the account that serves, so viewers may
look and not run code, and the server asks for a token and answers on this host only unless told otherwise.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from gpulab import config
from gpulab.errors import GpulabError
from gpulab.jupyter.launch import add_simulate_argument, say, serve, simulate

__all__ = ["add_dashboard_arguments", "dashboard_config", "notebook_path", "run_dashboard"]

PORT = 8866
NOTEBOOK = "team.ipynb"
TEMPLATE = "gpulab"
EXTENSIONS = ["@jupyter-widgets/jupyterlab-manager", "@voila-dashboards/widgets-manager8", "anywidget"]
"""What the browser loads beside Voila itself."""


def add_dashboard_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `gpulab dashboard`."""
    parser.add_argument(
        "--port", type=int, default=PORT, metavar="P", help=f"default {PORT}, or the next free one"
    )
    add_simulate_argument(parser)
    parser.add_argument(
        "jupyter", nargs="*", metavar="-- ARGUMENT", help="passed on to the Jupyter server, e.g. --ip=0.0.0.0"
    )


def run_dashboard(args: argparse.Namespace) -> int:
    """Serve the dashboard until it is stopped. Raises ScenarioError; GpulabError if files are missing."""
    simulate(args.simulate)
    settings = dashboard_config(args.port, notebook_path())
    from jupyter_server.serverapp import ServerApp

    config.export({"JUPYTER_PREFER_ENV_PATH": "1"})  # python3 is this environment's, whatever the account has
    server = ServerApp.instance(config=settings)
    server.initialize(argv=args.jupyter, find_extensions=False)
    serve(server)
    return 0


def notebook_path() -> str:
    """Where team.ipynb lies: in the working tree this package is imported from, else installed."""
    from jupyter_core.paths import jupyter_path

    tree = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    shares = [os.path.dirname(path) for path in jupyter_path()]
    candidates = [tree, *(os.path.join(share, "gpulab") for share in shares)]
    folders = [os.path.join(candidate, "dashboards") for candidate in candidates]
    found = next((d for d in folders if os.path.isfile(os.path.join(d, NOTEBOOK))), None)
    template = os.path.join("templates", TEMPLATE, "index.html.j2")
    if found is None or not any(map(os.path.isfile, jupyter_path("voila", template))):
        raise GpulabError(
            "The dashboard's files are not installed; run `pip install --force-reinstall gpulab`."
        )
    return os.path.join(found, NOTEBOOK)


def dashboard_config(port: int, notebook: str) -> Any:
    """The server's settings. Stronger than Jupyter's files, weaker than arguments after `--`."""
    from traitlets.config import Config

    from gpulab.jupyter.viewing import MESSAGES

    folder, name = os.path.split(notebook)
    settings = Config()
    settings.ServerApp.update(
        jpserver_extensions={"voila.server_extension": True},
        root_dir=folder,
        default_url=f"/voila/render/{name}",
        ip="127.0.0.1",
        port=port,
        open_browser=True,
        answer_yes=True,
        authorizer_class="gpulab.jupyter.viewing.ViewOnly",
    )
    settings.MappingKernelManager.update(
        allowed_message_types=MESSAGES,
        cull_idle_timeout=60,
        cull_interval=15,
        cull_connected=False,
    )
    settings.KernelSpecManager.allowed_kernelspecs = {"python3"}
    # Whatever a hub has made the default, looking at the GPUs must not take one.
    settings.KernelProvisionerFactory.default_provisioner_name = "local-provisioner"
    settings.VoilaConfiguration.update(_voila())
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        say("this is root; a team's dashboard is better served by an account without privileges.")
        settings.ServerApp.allow_root = True
    return settings


def _voila() -> dict[str, Any]:
    return {
        "template": TEMPLATE,
        "allow_template_override": "NO",
        "allow_theme_override": "NO",
        "strip_sources": True,
        "show_tracebacks": False,
        "file_allowlist": [],
        "extension_allowlist": EXTENSIONS,
        "resources": {"gpulab": {"host": config.host_name()}},
    }
