"""Leases of kernels under a real Jupyter server, and what the server extension answers."""

from __future__ import annotations

import os
import select
import signal
import threading

import pytest

HANG = {"devices": [{"profile": "t4", "count": 2}], "faults": [{"call": "*", "hang": True}]}
NINE = "9 GPUs were asked for and this machine has 4 to hand out; ask for at most 4."


@pytest.fixture
def kernel(server):
    """A GPU kernel on the shared server."""
    kernel_id = server.start()
    yield kernel_id
    if kernel_id in server.kernels():
        server.shut_down(kernel_id)
    assert server.place.live() == ()


def once(server, name, argv=None, **more):
    """Write a kernelspec unless an earlier test has."""
    if not (server.place.share / "kernels" / name).exists():
        server.place.spec(name, argv, **more)
    return name


def test_the_status_is_served_as_the_command_prints_it(server, kernel):
    code, report = server.ask("GET", "gpulab/api/status")
    lease = server.place.lease()
    assert code == 200
    assert report["schema"] == "gpulab.status/1"
    assert report["simulated"] is True
    assert len(report["devices"]) == 4
    assert [entry["id"] for entry in report["leases"]] == [lease.id]
    assert report["leases"][0]["kernel_id"] == kernel


def test_the_status_is_for_those_only_who_may_use_the_server(server):
    assert server.ask("GET", "gpulab/api/status", token="guessed")[0] == 403


def test_a_notebooks_kernel_has_its_name_beside_the_lease(server):
    body = {"path": "work.ipynb", "name": "work.ipynb", "type": "notebook", "kernel": {"name": "gpu"}}
    code, model = server.ask("POST", "api/sessions", body)
    assert code == 201
    lease = server.place.lease()
    assert lease.kernel_id == model["kernel"]["id"]
    assert lease.notebook.endswith("work.ipynb")
    assert server.ask("DELETE", f"api/sessions/{model['id']}")[0] == 204
    server.place.until(lambda: server.place.live() == (), "the end of the session's lease")


def test_a_restart_from_the_menu_keeps_the_gpu(server, kernel):
    before = server.place.lease()
    with server.talk(kernel):
        assert server.ask("POST", f"api/kernels/{kernel}/restart")[0] == 200
    with server.talk(kernel) as session:
        assert session.mask() == before.gpus[0]
        assert session.pid() != before.pid


def test_a_killed_kernel_comes_back_on_the_same_gpu(server, kernel):
    before = server.place.lease()
    with server.talk(kernel):
        os.kill(before.pid, signal.SIGKILL)
        server.place.until(lambda: server.place.lease().pid != before.pid, "the kernel's return")
    with server.talk(kernel) as session:
        assert session.mask() == before.gpus[0]
        assert server.place.lease().id == before.id


def test_a_kernel_that_the_server_gives_up_frees_its_gpu(server):
    kernel = server.start(once(server, "dying", ["/bin/false"]))
    server.place.until(lambda: kernel not in server.kernels(), "the server's giving up")
    server.place.until(lambda: server.place.live() == (), "the end of the lease")


def test_a_kernel_whose_program_is_missing_leaves_no_lease(server):
    code, _ = server.ask("POST", "api/kernels", {"name": once(server, "missing", ["/no/such/program"])})
    assert code == 500
    assert server.place.live() == ()


def test_a_refused_start_shows_its_sentence_at_both_doors(server):
    name = once(server, "strict", gpus=9, on_full="error")
    code, answer = server.ask("POST", "api/kernels", {"name": name})
    assert (code, answer["message"]) == (503, NINE)
    body = {"path": "x.ipynb", "name": "x.ipynb", "type": "notebook", "kernel": {"name": name}}
    code, answer = server.ask("POST", "api/sessions", body)
    assert (code, answer["message"]) == (500, NINE)
    assert server.kernels() == []


def test_while_a_driver_hangs_the_server_answers_and_the_kernel_starts_on_the_cpu(server):
    hanging = once(server, "hanging", env={"GPULAB_SIMULATE": server.place.scenario(**HANG)})
    started: list[str] = []
    starting = threading.Thread(target=lambda: started.append(server.start(hanging)))
    starting.start()
    for _ in range(5):
        assert server.kernels() == []
    assert starting.is_alive(), "the server answered while the kernel was waiting for the driver"
    starting.join()
    with server.talk(started[0]) as session:
        assert "gpulab: this kernel has no GPU: The NVIDIA driver" in session.run("1")
    server.shut_down(started[0])


def test_a_server_ends_at_sigterm_after_starts_that_failed_and_frees_what_it_held(place, new_server):
    place.spec("strict", gpus=9, on_full="error")
    place.spec("missing", ["/no/such/program"])
    server = new_server()
    body = {"path": "x.ipynb", "name": "x.ipynb", "type": "notebook", "kernel": {"name": "strict"}}
    assert server.ask("POST", "api/kernels", {"name": "strict"})[0] == 503
    assert server.ask("POST", "api/sessions", body)[0] == 500
    assert server.ask("POST", "api/kernels", {"name": "missing"})[0] == 500
    server.start()
    assert len(place.live()) == 1
    assert server.end(signal.SIGTERM) == 0
    assert place.live() == ()


def test_a_killed_server_frees_its_gpus_when_its_kernels_have_ended(place, new_server):
    server = new_server()
    with server.talk(server.start()):
        pid = place.lease().pid
    kernel = select.poll()
    kernel.register(os.pidfd_open(pid), select.POLLIN)
    server.end(signal.SIGKILL)
    assert kernel.poll(60_000), "the kernel notices that its server is gone"
    assert place.live() == ()


def test_a_server_whose_gpulab_extension_is_broken_serves_all_the_same(place, new_server, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text("import sys; sys.modules['gpulab.jupyter.routes'] = None")
    server = new_server(PYTHONPATH=str(broken))
    assert server.ask("GET", "gpulab/api/status")[0] == 404
    assert "the server extension was not loaded" in server.log.read_text()
    server.start()
    assert len(place.live()) == 1


def test_the_configuration_file_names_the_extension():
    import importlib
    import json
    from pathlib import Path

    import gpulab.jupyter

    file = Path(gpulab.jupyter.__file__).parent / "jupyter_server_config.d" / "gpulab.json"
    ((module, enabled),) = json.loads(file.read_text())["ServerApp"]["jpserver_extensions"].items()
    assert enabled is True
    points = importlib.import_module(module)._jupyter_server_extension_points()
    assert points == [{"module": module}]
