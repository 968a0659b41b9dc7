"""`gpulab lab`: what JupyterLab is started with, and what is refused before it starts."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpulab.errors import ScenarioError
from gpulab.jupyter import launch

OWN_KERNEL = "share/jupyter/kernels/gpulab/kernel.json"


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    launch.add_lab_arguments(parser)
    return parser.parse_args(words)


def gpulab(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpulab", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A directory with the notebooks."""
    path = tmp_path / "clone" / launch.START_NOTEBOOK
    path.parent.mkdir(parents=True)
    path.touch()
    return tmp_path / "clone"


def test_what_stands_after_the_dashes_is_jupyters() -> None:
    args = parse("--simulate", "2xt4", "--", "--no-browser", "--port=0")
    assert (args.simulate, args.jupyter) == ("2xt4", ["--no-browser", "--port=0"])


@pytest.mark.parametrize("command", ["lab", "dashboard"])
def test_an_unknown_machine_is_one_sentence_and_exit_code_64(command: str) -> None:
    done = gpulab(command, "--simulate", "8xabacus", "--", "--no-browser")
    assert (done.returncode, done.stdout) == (64, "")
    assert "there is no profile 'abacus'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_machine_that_the_environment_simulates_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "/no/such/file.json")
    with pytest.raises(ScenarioError, match="no such file"):
        launch.simulate(None)


def test_a_scenario_file_is_found_by_kernels_that_run_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.json").write_text(json.dumps({"devices": [{"profile": "t4"}]}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPULAB_SIMULATE", "")
    launch.simulate("mine.json")
    assert os.environ["GPULAB_SIMULATE"] == str(tmp_path / "mine.json")
    assert "simulated" in capsys.readouterr().err


def test_on_the_real_machine_nothing_is_said_and_nothing_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    launch.simulate(None)
    assert "GPULAB_SIMULATE" not in os.environ
    assert capsys.readouterr().err == ""


def test_it_opens_the_start_notebook_where_there_is_one(clone: Path) -> None:
    settings = launch.lab_config(str(clone), [])
    assert settings.LabApp.default_url == "/lab/tree/notebooks/00_start_here.ipynb"
    assert settings.ServerApp.root_dir == str(clone)


def test_it_opens_what_the_user_names_instead(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clone)
    assert "default_url" not in launch.lab_config(str(clone), ["notebooks"]).LabApp


def test_without_the_notebooks_it_opens_the_directory_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = launch.lab_config(str(tmp_path), [])
    assert "default_url" not in settings.LabApp
    assert "no notebooks/00_start_here.ipynb here" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="says something about root")
def test_root_is_allowed_and_told(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.lab_config(str(clone), []).ServerApp.allow_root is True
    assert "--allow-root" in capsys.readouterr().err


def test_a_notebooks_shell_finds_the_command_of_an_environment_that_is_not_activated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    launch.put_command_on_path()
    launch.put_command_on_path()
    assert os.environ["PATH"] == os.pathsep.join([os.path.dirname(sys.executable), "/usr/bin"])


STOP_WITH_A_REQUEST_UNDER_WAY = """
import asyncio, anyio.to_thread
from gpulab.jupyter import launch

class Server:
    def start(self):
        loop = asyncio.new_event_loop()
        async def request():
            await anyio.to_thread.run_sync(int)
            loop.stop()
            await asyncio.Event().wait()
        loop.create_task(request())
        loop.run_forever()

launch.serve(Server())
print("stopped", flush=True)
"""


def test_the_process_ends_with_its_server_although_a_request_was_under_way() -> None:
    command = [sys.executable, "-c", STOP_WITH_A_REQUEST_UNDER_WAY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "stopped\n"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment without the kernelspec, which has the packages of this one."""
    place = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    root = Path(launch.__file__).resolve().parents[2]
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join([str(root), *packages]))
    return place


def ensure(environment: Path, tmp_path: Path) -> str:
    """Where Jupyter finds the kernel `gpulab` afterwards."""
    code = (
        "from gpulab.jupyter import launch, kernelspec; launch.ensure_kernelspec();"
        "print(*[spec.path for spec in kernelspec.listed() if spec.name == 'gpulab'])"
    )
    variables = {
        "HOME": str(tmp_path / "home"),
        "PATH": os.environ["PATH"],
        "GPULAB_DATA_DIR": str(tmp_path / "data"),
    }
    command = [environment / "bin" / "python", "-c", code]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_kernel_is_installed_into_an_environment_that_lacks_it(environment: Path, tmp_path: Path) -> None:
    assert ensure(environment, tmp_path) == str((environment / OWN_KERNEL).parent)
    spec = json.loads((environment / OWN_KERNEL).read_text())
    assert spec["argv"][0] == str(environment / "bin" / "python")


def test_another_environments_kernel_of_that_name_does_not_stand_in(
    environment: Path, tmp_path: Path
) -> None:
    stranger = tmp_path / "home" / ".local" / "share" / "jupyter" / "kernels" / "gpulab"
    stranger.mkdir(parents=True)
    provisioner = {"kernel_provisioner": {"provisioner_name": "gpulab-provisioner"}}
    spec = {"argv": ["/elsewhere/python"], "display_name": "x", "language": "python", "metadata": provisioner}
    (stranger / "kernel.json").write_text(json.dumps(spec))
    assert ensure(environment, tmp_path) == str((environment / OWN_KERNEL).parent)


def test_where_the_environment_cannot_be_written_the_accounts_own_directory_serves(
    environment: Path, tmp_path: Path
) -> None:
    (environment / "share").write_text("not a directory, as a read-only environment has none")
    found = ensure(environment, tmp_path)
    assert found == str(tmp_path / "data" / "jupyter" / Path(OWN_KERNEL).parent)
