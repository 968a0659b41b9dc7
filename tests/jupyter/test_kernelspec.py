"""`gpulab kernel`: what is written, what is refused, and that kernels start from it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from jupyter_client.provisioning import KernelProvisionerFactory

from gpulab.commands.kernel import add_arguments, run
from gpulab.errors import GpulabError, RequestError
from gpulab.jupyter.kernelspec import install

EXTENSION = "--IPKernelApp.extra_extensions=gpulab"


@pytest.fixture
def command(place, capsys):
    """Run `gpulab kernel ...` and return what it prints on both streams."""

    def call(*words: str) -> str:
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        where = [] if words[0] == "list" else ["--prefix", str(place.root / "prefix")]
        assert run(parser.parse_args([*words, *where])) == 0
        return "".join(capsys.readouterr())

    return call


@pytest.fixture(autouse=True)
def _seen_by_jupyter(place, monkeypatch):
    monkeypatch.setenv("JUPYTER_PATH", f"{place.root}/prefix/share/jupyter{os.pathsep}{place.share}")
    monkeypatch.setenv("JUPYTER_DATA_DIR", f"{place.root}/account")
    monkeypatch.setattr("jupyter_core.paths.ENV_JUPYTER_PATH", [])  # this environment may have its own


def written(place, name: str = "gpulab") -> dict:
    return json.loads((place.root / "prefix/share/jupyter/kernels" / name / "kernel.json").read_text())


def environment_of_another(directory: Path, *, with_ipykernel: bool) -> str:
    """A virtual environment without gpulab, and its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    python = directory / "bin" / "python"
    site = Path(
        subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        ).strip()
    )
    if with_ipykernel:
        (site / "ours.pth").write_text(sysconfig.get_path("purelib"))
        (site / "gpulab.py").write_text("raise ImportError('not installed here')")
    return str(python)


def test_it_writes_only_what_was_asked_for(place, command):
    assert "Installed the kernelspec gpulab in " in command("install")
    spec = written(place)
    assert spec["display_name"] == "Python 3 (GPU)"
    assert spec["language"] == "python"
    assert spec["metadata"]["debugger"] is True
    assert spec["metadata"]["kernel_provisioner"] == {"provisioner_name": "gpulab-provisioner"}
    assert spec["argv"][0] == sys.executable
    assert spec["argv"][-4:] == ["ipykernel_launcher", "-f", "{connection_file}", EXTENSION]


def test_options_go_into_the_kernelspec_and_into_the_list(place, command):
    command("install", "--name", "half", "--display-name", "Half", "--memory", "4GiB", "--on-full", "error")
    config = written(place, "half")["metadata"]["kernel_provisioner"]["config"]
    assert config == {"memory": "4GiB", "on_full": "error"}
    shown = command("list")
    assert f"half  Half  {sys.executable}  memory=4GiB on_full=error" in shown


def test_installing_again_replaces_and_removing_removes(place, command):
    command("install", "--gpus", "2", "--exclusive")
    command("install", "--gpus", "3")
    assert written(place)["metadata"]["kernel_provisioner"]["config"] == {"gpus": 3}
    assert os.listdir(place.root / "prefix/share/jupyter/kernels") == ["gpulab"]
    assert command("remove").startswith("Removed ")
    assert os.listdir(place.root / "prefix/share/jupyter/kernels") == []
    with pytest.raises(RequestError, match="There is no kernelspec 'gpulab' to remove"):
        command("remove")


def test_the_list_says_so_where_there_is_none(command, place):
    (place.share / "kernels" / "gpu" / "kernel.json").unlink()
    assert "`gpulab kernel install` writes one" in command("list")


def test_a_kernel_from_it_has_its_gpu_and_the_magics(place, command, start):
    command("install", "--memory", "4GiB")
    with place.talk(start("gpulab")) as session:
        assert session.run("1").startswith("gpulab: 4.0 GiB of Tesla T4 (simulated)")
        assert place.lease().memory_bytes == 4 * 2**30


def other_language(place) -> None:
    directory = place.share / "kernels" / "shell"
    directory.mkdir()
    (directory / "logo-64x64.png").write_bytes(b"a picture")
    (directory / "kernel.json").write_text(
        json.dumps(
            {
                "argv": ["/bin/sh", "-c", "exec sleep 600 {resource_dir}"],
                "display_name": "Shell",
                "language": "sh",
                "interrupt_mode": "message",
                "metadata": {"own": True},
            }
        )
    )


def test_a_kernel_of_another_language_is_copied_whole_and_gets_a_gpu(place, command, start):
    other_language(place)
    command("install", "--from", "shell", "--gpus", "2")
    spec = written(place, "gpulab-shell")
    assert spec["display_name"] == "Shell (2 GPUs)"
    assert (spec["interrupt_mode"], spec["metadata"]["own"]) == ("message", True)
    assert EXTENSION not in spec["argv"]
    logo = place.root / "prefix/share/jupyter/kernels/gpulab-shell/logo-64x64.png"
    assert logo.read_bytes() == b"a picture"
    start("gpulab-shell")
    assert len(place.lease().gpus) == 2


def test_an_ipython_kernel_is_copied_with_the_extension_once(place, command):
    command("install", "--from", "python3", "--name", "one")
    command("install", "--from", "one", "--name", "two", "--gpus", "2")
    assert written(place, "one")["argv"].count(EXTENSION) == 1
    assert written(place, "two")["argv"].count(EXTENSION) == 1
    assert written(place, "one")["display_name"] == "Python 3 (GPU)"
    assert written(place, "two")["display_name"] == "Python 3 (2 GPUs)"


@pytest.mark.parametrize(
    ("words", "title"),
    [
        (["--memory", "8GiB"], "Python 3 (GPU, 8 GiB)"),
        (["--memory", "1.5GiB", "--exclusive"], "Python 3 (GPU, 1.5 GiB, exclusive)"),
        (["--gpus", "2"], "Python 3 (2 GPUs)"),
        (["--gpus", "1", "--on-full", "error"], "Python 3 (GPU)"),
        (["--gpus", "2", "--display-name", "Mine"], "Mine"),
    ],
)
def test_the_launchers_tile_tells_what_its_kernels_get(place, command, words, title):
    command("install", "--name", "other", *words)
    assert written(place, "other")["display_name"] == title


def test_a_tile_that_would_look_like_another_one_has_its_name_too(place, command):
    command("install")
    command("install", "--from", "python3")
    command("install", "--name", "strict", "--on-full", "error")
    command("install", "--name", "strict", "--on-full", "error")  # it does not collide with itself
    assert written(place)["display_name"] == "Python 3 (GPU)"
    assert written(place, "gpulab-python3")["display_name"] == "Python 3 (GPU, gpulab-python3)"
    assert written(place, "strict")["display_name"] == "Python 3 (GPU, strict)"


def test_a_copy_of_one_of_ours_asks_for_the_same_unless_told_anew(place, command):
    command("install", "--name", "small", "--memory", "8GiB", "--on-full", "error")
    command("install", "--from", "small", "--name", "same")
    command("install", "--from", "same", "--name", "large", "--memory", "16GiB")
    asked = {
        name: written(place, name)["metadata"]["kernel_provisioner"]["config"] for name in ("same", "large")
    }
    assert asked["same"] == {"memory": "8GiB", "on_full": "error"}
    assert asked["large"] == {"memory": "16GiB", "on_full": "error"}
    assert written(place, "same")["display_name"] == "Python 3 (GPU, 8 GiB, same)"
    assert written(place, "large")["display_name"] == "Python 3 (GPU, 16 GiB)"


def test_the_help_says_where_it_is_installed(capsys):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["install", "--help"])
    assert "into this Python environment, or where Python is" in " ".join(capsys.readouterr().out.split())


def test_a_python_without_gpulab_gets_its_gpu_but_no_extension_and_that_is_said(place, command, start):
    python = environment_of_another(place.root / "env", with_ipykernel=True)
    shown = command("install", "--python", python)
    assert f"gpulab: {python} cannot load gpulab (ImportError: not installed here)" in shown
    assert written(place)["argv"][0] == python
    assert EXTENSION not in written(place)["argv"]
    with place.talk(start("gpulab")) as session:
        assert session.run("1") == "1"
        assert session.mask() == place.lease().gpus[0]


def test_a_python_without_ipykernel_is_refused(place, command):
    python = environment_of_another(place.root / "env", with_ipykernel=False)
    with pytest.raises(RequestError, match=r"has no ipykernel .*; install ipykernel there first"):
        command("install", "--python", python)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--python", "/no/such/python"], "/no/such/python cannot be run"),
        (["--python", "/bin/true"], "/bin/true is no Python that can be asked"),
        (["--from", "nothing"], "There is no kernelspec 'nothing'; Jupyter finds .*gpu.*python3"),
        (["--memory", "8Gigs"], "'8Gigs' is not a size"),
        (["--gpus", "0"], "0 GPUs cannot be handed out"),
        (["--name", "a b"], "'a b' cannot name a kernelspec"),
    ],
)
def test_what_cannot_be_installed_is_one_sentence_and_leaves_nothing(place, command, words, sentence):
    with pytest.raises(RequestError, match=sentence):
        command("install", *words)
    assert not (place.root / "prefix").exists()


def test_a_kernelspec_that_is_not_ours_is_neither_replaced_nor_removed(place, command):
    other_language(place)
    theirs = place.root / "prefix/share/jupyter/kernels"
    theirs.mkdir(parents=True)
    (place.share / "kernels" / "shell").rename(theirs / "shell")
    with pytest.raises(RequestError, match="is a kernelspec that is not gpulab's; choose another --name"):
        command("install", "--name", "shell")
    with pytest.raises(RequestError, match="is not gpulab's; remove it with `jupyter kernelspec remove`"):
        command("remove", "--name", "shell")
    assert (theirs / "shell" / "kernel.json").exists()


def test_kernels_that_another_provisioner_starts_are_refused(place, command, monkeypatch):
    metadata = place.root / "elsewhere" / "remote-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: remote\nVersion: 1\n")
    entry = "remote-provisioner = jupyter_client.provisioning:LocalProvisioner"
    (metadata / "entry_points.txt").write_text(f"[jupyter_client.kernel_provisioners]\n{entry}\n")
    monkeypatch.syspath_prepend(str(place.root / "elsewhere"))
    KernelProvisionerFactory.clear_instance()  # from Python 3.12 on it finds only what was there at its start
    file = place.share / "kernels" / "gpu" / "kernel.json"
    file.write_text(file.read_text().replace("gpulab-provisioner", "remote-provisioner"))
    with pytest.raises(
        RequestError, match="Kernels of 'gpu' are started by 'remote-provisioner'; gpulab can"
    ):
        command("install", "--from", "gpu")


def test_a_place_that_cannot_be_written_is_one_sentence(place):
    (place.root / "file").write_text("")
    with pytest.raises(GpulabError, match=r"cannot be written to .*; try --user, or --prefix"):
        install(prefix=str(place.root / "file"))


def test_a_place_where_jupyter_does_not_look_is_said(place, command):
    installed = install(prefix=str(place.root / "elsewhere"))
    assert "Jupyter does not look in " in installed.notes[0]
    assert "JUPYTER_PATH=" in installed.notes[0]
