"""`gpulab dashboard`: the settings that make it a page to look at, for those who have the token."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gpulab.errors import GpulabError
from gpulab.jupyter import dashboard

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def settings() -> Any:
    return dashboard.dashboard_config(8866, "/somewhere/team.ipynb")


def test_it_is_found_on_this_host_only_and_asks_for_the_token(settings: Any) -> None:
    assert settings.ServerApp.ip == "127.0.0.1"
    assert "token" not in settings.ServerApp
    assert "IdentityProvider" not in settings


def test_it_serves_the_one_notebook_and_no_other_extension(settings: Any) -> None:
    assert settings.ServerApp.root_dir == "/somewhere"
    assert settings.ServerApp.default_url == "/voila/render/team.ipynb"
    assert settings.ServerApp.jpserver_extensions == {"voila.server_extension": True}


def test_pages_that_nobody_looks_at_lose_their_kernel_and_slow_ones_do_not(settings: Any) -> None:
    kernels = settings.MappingKernelManager
    assert kernels.cull_idle_timeout >= 60
    assert kernels.cull_connected is False
    assert 0 < kernels.cull_interval < kernels.cull_idle_timeout


def test_a_page_never_takes_a_gpu_whatever_the_default_provisioner_is(settings: Any) -> None:
    assert settings.KernelProvisionerFactory.default_provisioner_name == "local-provisioner"
    assert settings.KernelSpecManager.allowed_kernelspecs == {"python3"}


def test_viewers_see_no_code_no_traceback_and_no_file(settings: Any) -> None:
    voila = settings.VoilaConfiguration
    assert voila.strip_sources is True
    assert voila.show_tracebacks is False
    assert voila.file_allowlist == []
    assert voila.allow_template_override == "NO"


def test_what_stands_after_the_dashes_is_the_servers() -> None:
    parser = argparse.ArgumentParser()
    dashboard.add_dashboard_arguments(parser)
    args = parser.parse_args(["--port", "9000", "--", "--ip=0.0.0.0"])
    assert (args.port, args.jupyter) == (9000, ["--ip=0.0.0.0"])


def test_in_a_working_tree_its_own_notebook_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = tmp_path / "voila" / "templates" / "gpulab"
    template.mkdir(parents=True)
    (template / "index.html.j2").touch()
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    assert dashboard.notebook_path() == str(ROOT / "dashboards" / "team.ipynb")


def test_a_half_installed_gpulab_says_so_instead_of_serving_a_page_that_never_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_core.paths.jupyter_path", lambda *parts: [str(tmp_path.joinpath(*parts))])
    with pytest.raises(GpulabError, match="not installed; run `pip install --force-reinstall gpulab`"):
        dashboard.notebook_path()


def test_the_page_names_no_other_host() -> None:
    for path in (ROOT / "dashboards" / "template").rglob("*"):
        if path.is_file():
            text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
            assert "http:" not in text, path
            assert "https:" not in text, path


def test_installed_without_the_tree_it_is_found_where_pyproject_puts_it(tmp_path: Path) -> None:
    shared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    for source in ("dashboards/team.ipynb", "dashboards/template"):
        target = tmp_path / shared["shared-data"][source]
        target.parent.mkdir(parents=True)
        (shutil.copytree if (ROOT / source).is_dir() else shutil.copy)(ROOT / source, target)
    shutil.copytree(ROOT / "gpulab", tmp_path / "site" / "gpulab")
    code = "from gpulab.jupyter.dashboard import notebook_path; print(notebook_path())"
    packages = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    variables = {"PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{packages}", "HOME": str(tmp_path)}
    variables["JUPYTER_PATH"] = str(tmp_path / "share" / "jupyter")
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "share" / "gpulab" / "dashboards" / "team.ipynb")
