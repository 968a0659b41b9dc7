"""Leases of kernels whose parent is this process: a plain KernelManager, nbclient."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from typing import Any

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError
from tornado.web import HTTPError

from gpulab.errors import GpulabError
from gpulab.jupyter.provisioner import GpuProvisioner

FORKED_WORKER = """
import multiprocessing, time
multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
"""
SLEEPER = ["/bin/sh", "-c", "exec sleep 600"]
HANG = {"devices": [{"profile": "t4", "count": 2}], "faults": [{"call": "*", "hang": True}]}


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def launch_environment(env: dict[str, str] | None = None, **options: Any) -> dict[str, str]:
    """What a kernel with these options would get, without starting it; its lease is given back."""
    return asyncio.run(_launch_environment(dict(os.environ) if env is None else env, options))


async def _launch_environment(env: dict[str, str], options: dict[str, Any]) -> dict[str, str]:
    spec = KernelSpec(argv=["true"])
    provisioner = GpuProvisioner(kernel_id="k", kernel_spec=spec, parent=None, **options)
    prepared = await provisioner.pre_launch(env=env)
    await provisioner.cleanup(restart=False)
    return dict(prepared["env"])


def notebook(*cells: str) -> Any:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def test_a_kernel_sees_its_own_gpu_and_nothing_else_from_its_first_cell_on(place, start):
    manager = start()
    with place.talk(manager) as session:
        lease = place.lease()
        assert session.mask() == lease.gpus[0]
        assert session.value("__import__('os').environ['CUDA_DEVICE_ORDER']") == "PCI_BUS_ID"
        assert session.value("__import__('gpulab').current().id") == lease.id
        assert session.pid() == lease.pid


def test_two_kernels_never_share_a_gpu_and_the_lease_names_its_kernel(place, start):
    managers = [start(), start()]
    first, second = place.live()
    assert not set(first.gpus) & set(second.gpus)
    assert {first.kernel_id, second.kernel_id} == {manager.kernel_id for manager in managers}


@pytest.mark.parametrize("now", [False, True])
def test_a_restarted_kernel_keeps_its_gpu(place, start, now):
    manager = start()
    before = place.lease()
    with place.talk(manager):
        manager.restart_kernel(now=now)
    with place.talk(manager) as session:
        assert place.lease().id == before.id
        assert session.mask() == before.gpus[0]
        assert place.lease().pid == session.pid() != before.pid


def test_a_kernel_that_was_shut_down_has_freed_its_gpu_and_leaves_no_file(place, start):
    manager = start()
    with place.talk(manager):
        manager.shutdown_kernel()
    assert place.live() == ()
    place.until(lambda: place.leases.names("lease-") == [], "the sweep")


def test_cleaning_up_twice_is_fine(place, start):
    manager = start()
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()
    assert place.live() == ()


def test_a_kernel_killed_under_a_plain_parent_is_free_at_cleanup(place, start):
    manager = start()
    os.kill(manager.provisioner.pid, signal.SIGKILL)
    place.until(lambda: not manager.is_alive(), "the kernel's death")
    assert place.live() != (), "the parent may still restart it"
    manager.shutdown_kernel(now=True)
    assert place.live() == ()


@pytest.mark.parametrize(
    "background",
    [
        "import os; os.system('setsid sleep 600 &')",
        "import os\nif os.fork() == 0: os.setsid(); os.execvp('sleep', ['sleep', '600'])",
        FORKED_WORKER,
    ],
    ids=["shell job", "fork and exec", "multiprocessing"],
)
def test_a_child_that_outlives_the_kernel_does_not_keep_the_gpu(place, start, tmp_path, background):
    manager = start(cwd=str(tmp_path))
    with place.talk(manager) as session:
        session.run(background)
        kernel = session.pid()
    children = _children(kernel) + _sleepers(tmp_path)
    os.kill(kernel, signal.SIGKILL)
    place.until(lambda: not manager.is_alive(), "the kernel's death")
    manager.provisioner.pgid = None  # so that the shutdown spares the children
    try:
        assert children
        assert all(map(alive, children))
        manager.shutdown_kernel(now=True)
        assert place.live() == ()
        assert all(map(alive, children))
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def _sleepers(directory) -> list[int]:
    """Processes that work in the directory and are nobody's child here."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{name}/cwd") == str(directory):
                with open(f"/proc/{name}/cmdline") as file:
                    found += [int(name)] if file.read().startswith("sleep") else []
        except OSError:
            continue
    return found


def test_a_launch_that_fails_gives_the_lease_back(place, start):
    place.spec("missing", ["/no/such/program"])
    with pytest.raises(FileNotFoundError):
        start("missing")
    assert place.live() == ()


def test_a_notebook_run_by_nbclient_has_a_gpu_and_frees_it(place):
    book = notebook("import os", "print(os.environ['CUDA_VISIBLE_DEVICES'])")
    NotebookClient(book, kernel_name="gpu").execute()
    assert book.cells[0].outputs[0].text.startswith("gpulab: Tesla T4 (simulated), GPU-")
    assert book.cells[1].outputs[0].text.startswith("GPU-")
    assert place.live() == ()


def test_a_kernel_that_dies_under_nbclient_is_free_when_the_error_arrives(place):
    book = notebook("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(DeadKernelError):
        NotebookClient(book, kernel_name="gpu").execute()
    assert place.live() == ()


def test_a_kernel_in_another_language_gets_its_gpu_too(place, start):
    place.spec("other", SLEEPER)
    manager = start("other")
    with open(f"/proc/{manager.provisioner.pid}/environ") as file:
        environment = dict(entry.split("=", 1) for entry in file.read().split("\0") if entry)
    assert environment["CUDA_VISIBLE_DEVICES"] == place.lease().gpus[0]
    manager.shutdown_kernel(now=True)
    assert place.live() == ()


def test_where_no_gpu_can_be_had_the_kernel_starts_and_says_why_with_its_first_cell_only(place, start):
    place.spec("nine", gpus=9)
    with place.talk(start("nine")) as session:
        first, second = session.run("1"), session.run("2")
        assert "gpulab: this kernel has no GPU: 9 GPUs were asked for and this machine has 4" in first
        assert second == "2"
        assert session.mask() == ""


def test_with_on_full_error_the_start_is_refused_with_the_bare_sentence(place, start):
    place.spec("four", gpus=4)
    place.spec("strict", on_full="error")
    start("four")
    with pytest.raises(GpulabError) as caught:
        start("strict")
    assert isinstance(caught.value, HTTPError)
    assert caught.value.status_code == 503
    assert str(caught.value).startswith("1 GPU was asked for and none of 4 is free; shut down a ")
    assert "wait (GPUs 0, 1, 2, 3: leased by " in caught.value.log_message
    assert "\n" not in caught.value.log_message + caught.value.reason
    assert "wait (\n  GPUs 0, 1, 2, 3: leased by " in str(caught.value)  # JupyterLab's dialog does not wrap
    assert len(place.live()) == 1


def test_after_a_release_another_kernel_takes_the_gpu_and_a_restart_takes_a_free_one(place, start):
    place.spec("three", gpus=3)
    first = start()
    lost = place.lease().gpus[0]
    with place.talk(first) as session:
        assert "is given back" in session.run("%gpu release")
        assert session.mask() == ""
    assert place.live() == ()
    start("three")
    others = place.lease()
    assert lost in others.gpus
    first.restart_kernel(now=True)
    with place.talk(first) as session:
        assert session.mask() not in {"", *others.gpus}


def test_a_restart_takes_the_released_gpu_again_if_it_is_free(place, start):
    manager = start()
    before = place.lease()
    with place.talk(manager) as session:
        session.run("%gpu release")
    manager.restart_kernel(now=True)
    assert place.lease().gpus == before.gpus
    assert place.lease().id != before.id


def test_a_restart_always_brings_a_kernel_even_with_on_full_error(place, start):
    place.spec("strict", on_full="error")
    place.spec("four", gpus=4)
    manager = start("strict")
    with place.talk(manager) as session:
        session.run("%gpu release")
    start("four")
    manager.restart_kernel(now=True)
    with place.talk(manager) as session:
        assert "this kernel has no GPU: 1 GPU was asked for" in session.run("1")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"memory": "8Gigs"}, "The memory of this kernel cannot be leased: '8Gigs' is not a size"),
        ({"memory": "80GiB"}, "1 GPU with 80.0 GiB was asked for and this machine has none"),
        ({"policy": "luckiest"}, "There is no policy 'luckiest'; choose idlest, pack, "),
        ({"gpus": 9}, "9 GPUs were asked for and this machine has 4 to hand out"),
        ({"gpus": 0}, "0 GPUs cannot be handed out"),
        ({"gpus": "two"}, "The GPU options of this kernel are wrong (The 'gpus' trait"),
        ({"memmory": "8GiB"}, "The GPU options of this kernel are wrong (there is no option 'memmory')"),
    ],
)
def test_wrong_options_give_one_sentence_and_a_kernel_without_gpu(place, options, sentence):
    environment = launch_environment(**options)
    assert environment["GPULAB_NO_GPU_REASON"].startswith(sentence)
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    with pytest.raises(GpulabError, match="^" + sentence.replace("(", "\\(").replace(")", "\\)")):
        launch_environment(**options, on_full="error")
    assert place.live() == ()


def test_a_setting_that_cannot_be_used_gives_its_sentence_too(place):
    environment = launch_environment({**os.environ, "GPULAB_POLICY": "luckiest"})
    assert environment["GPULAB_NO_GPU_REASON"].startswith("policy is 'luckiest'; it must be one of idlest, ")


def test_the_default_of_on_full_is_that_of_the_settings(place, monkeypatch):
    monkeypatch.setenv("GPULAB_ON_FULL", "error")
    with pytest.raises(GpulabError, match="9 GPUs were asked for"):
        launch_environment(gpus=9)
    assert launch_environment(gpus=9, on_full="cpu")["CUDA_VISIBLE_DEVICES"] == ""


def test_a_share_names_its_limit(place):
    environment = launch_environment(memory="4GiB")
    assert environment["GPULAB_MEMORY_LIMIT"] == str(4 * 2**30)
    assert environment["CUDA_VISIBLE_DEVICES"].startswith("GPU-")


def test_what_the_servers_own_lease_left_in_the_environment_does_not_reach_the_kernel(place):
    own = {"GPULAB_LEASE": "0badc0de", "GPULAB_LEASE_FD": "9", "GPULAB_MEMORY_LIMIT": "1"}
    environment = launch_environment({**os.environ, **own, "GPULAB_KERNEL_ID": "outer"}, gpus=9)
    assert not set(own) & set(environment)
    assert environment["GPULAB_KERNEL_ID"] == "k"


def test_the_servers_mask_bounds_the_choice_also_where_the_caller_passes_little(place, monkeypatch):
    everything = launch_environment(gpus=4)["CUDA_VISIBLE_DEVICES"].split(",")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", everything[3])
    assert launch_environment({"PATH": os.defpath})["CUDA_VISIBLE_DEVICES"] == everything[3]
    both = launch_environment({"PATH": os.defpath}, gpus=2)
    assert "this machine has 1 to hand out" in both["GPULAB_NO_GPU_REASON"]


def test_a_start_that_is_cancelled_while_the_driver_is_slow_keeps_no_gpu(place, monkeypatch):
    slow = place.scenario(devices=[{"profile": "t4"}], faults=[{"call": "nvmlInit*", "latency": 0.5}])
    monkeypatch.setenv("GPULAB_SIMULATE", slow)

    async def cancelled() -> None:
        spec = KernelSpec(argv=["true"])
        task = asyncio.create_task(GpuProvisioner(kernel_id="k", kernel_spec=spec, parent=None).pre_launch())
        await asyncio.sleep(0)
        while not any(thread.name == "gpulab" for thread in threading.enumerate()):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    for thread in threading.enumerate():
        if thread.name == "gpulab":
            thread.join()
    assert place.live() == ()


def test_a_driver_that_hangs_becomes_the_reason(place, monkeypatch):
    monkeypatch.setenv("GPULAB_SIMULATE", place.scenario(**HANG))
    assert "did not answer" in launch_environment()["GPULAB_NO_GPU_REASON"]


def test_a_callers_preexec_fn_does_not_cost_the_kernel_its_lease(place, start):
    manager = start(preexec_fn=lambda: None)
    with place.talk(manager) as session:
        assert session.value("__import__('gpulab').current().is_held()") == "True"


def test_the_provisioners_record_names_the_lease(place, start):
    manager = start()
    info = asyncio.run(manager.provisioner.get_provisioner_info())
    assert info["gpulab_lease"] == place.lease().id
    assert json.dumps(info["pid"]) == str(manager.provisioner.pid)


def test_the_provisioner_loads_nothing_heavy():
    """A server imports it for its first kernel."""
    heavy = "pynvml", "rich", "numpy", "psutil", "tornado.web", "IPython"
    code = f"import sys, gpulab.jupyter.provisioner; print([m for m in {heavy} if m in sys.modules])"
    found = os.popen(f'{sys.executable} -c "{code}"').read()
    assert found.strip() == "[]"


def test_without_our_extension_the_last_descendant_of_a_kernel_keeps_the_gpu_until_it_ends(
    place, start, tmp_path
):
    """Other languages cannot close the descriptor; the lease is true for as long as a child could compute."""
    place.spec("other", ["/bin/sh", "-c", "setsid sleep 600 & exec sleep 600"])
    manager = start("other", cwd=str(tmp_path))
    place.until(lambda: len(_sleepers(tmp_path)) == 2, "both sleepers")
    (child,) = set(_sleepers(tmp_path)) - {manager.provisioner.pid}
    try:
        manager.shutdown_kernel(now=True)
        assert len(place.live()) == 1
    finally:
        os.kill(child, signal.SIGKILL)
    place.until(lambda: place.live() == (), "the end of the lease")
