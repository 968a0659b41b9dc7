"""`gpulab dashboard`: the settings that make it a page to look at, for those who have the token."""

from __future__ import annotations

import argparse
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
