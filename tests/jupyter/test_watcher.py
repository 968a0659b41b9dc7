"""A real Jupyter server over idle kernels: shown, told, stopped, never at work; the next one knows why."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from gpulab.hardware import scenario
from gpulab.settings import Settings
from gpulab.telemetry import sampler

from .conftest import Place, Server

BUSY = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
SERVE = {"GPULAB_IDLE_AFTER": "1s"}


@contextlib.contextmanager
def serving(root, **environment):
    """A server under which a kernel is idle after a second of rest; its sampler ends with it."""
    place = Place(root)
    place.spec("gpu")
    server = Server(place, **SERVE, **environment)
    try:
        yield server
    finally:
        server.end()
        pid = sampler.running_pid(Settings(data_dir=str(root / "data"), simulate=place.machine))
        if pid is not None:
            os.kill(pid, signal.SIGTERM)


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """It stops its idle kernels, after a second of grace."""
    with serving(tmp_path_factory.mktemp("strict"), GPULAB_ON_IDLE="stop") as server:
        yield server


@pytest.fixture(scope="module")
def mild(tmp_path_factory):
    """It tells them."""
    with serving(tmp_path_factory.mktemp("mild"), GPULAB_ON_IDLE="notice") as server:
        yield server


def notebook(server, path="work.ipynb"):
    """Open a notebook as JupyterLab does; its kernel's id."""
    body = {"path": path, "name": path, "type": "notebook", "kernel": {"name": "gpu"}}
    code, model = server.ask("POST", "api/sessions", body)
    assert code == 201, model
    return model["kernel"]["id"]


def write(place, **content):
    """Change the machine, whole, as its readers expect."""
    temporary = place.root / "next.json"
    temporary.write_text(json.dumps(content))
    temporary.replace(place.machine)


def uuids(place):
    """Of the simulated GPUs, by their index."""
    return [device.uuid for device in scenario.load(place.machine).devices]


def states(server):
    return [entry["state"] for entry in server.ask("GET", "gpulab/api/status")[1]["leases"]]


def shown_until(session, text, seconds=30):
    """What appears under the cells that have run, without another one, until it contains `text`."""
    shown = ""
    deadline = time.monotonic() + seconds
    while text not in shown:
        assert time.monotonic() < deadline, shown
        message = session.client.get_iopub_msg(timeout=seconds)
        shown += message["content"].get("data", {}).get("text/plain", "")
    return shown


def test_an_idle_kernel_is_told_then_stopped_and_the_next_one_says_why(strict):
    server, place = strict, strict.place
    kernel = notebook(server)
    with server.talk(kernel) as session:
        session.run("1")
        told = shown_until(session, "has not used its GPU since")
    assert "run a cell to keep it" in told
    assert "`%gpu release`" in told
    place.until(lambda: place.live() == (), "the end of its lease")
    place.until(lambda: server.kernels() == [], "the end of the kernel")
    assert server.ask("GET", "api/sessions")[1] == [], "JupyterLab shows no ghost"
    with server.talk(notebook(server, "other.ipynb")) as session:
        assert "stopped" not in session.run("1")
    with server.talk(notebook(server)) as session:
        first = session.run("1")
        assert re.match(
            r"gpulab: this notebook's last kernel was stopped at [0-9 :-]+: it had not used", first
        )
        assert "is yours" in first
        assert "stopped" not in session.run("2")


def test_with_notice_only_it_is_shown_and_told_and_lives_and_work_withdraws_it(mild):
    server, place = mild, mild.place
    kernel = server.start()
    with server.talk(kernel) as session:
        session.run("1")
        place.until(lambda: states(server) == ["idle"], "the idle state")
        since = place.lease().idle_since
        assert place.lease().since <= since <= time.time() - 1
        assert "give it back with `%gpu release`" in shown_until(session, "has not used its GPU since")
        session.client.execute(BUSY)
        place.until(lambda: states(server) == ["active"], "the end of the idle state")
        assert server.ask("POST", f"api/kernels/{kernel}/interrupt")[0] == 204
        shown_until(session, "has not used its GPU since")  # the next rest is told anew
    assert server.kernels() == [kernel]
    server.shut_down(kernel)


def test_who_computes_on_cpu_or_gpu_or_cannot_be_seen_outlives_the_idle(strict):
    server, place = strict, strict.place
    kernels = [server.start() for _ in range(3)]
    by_id = {lease.kernel_id: lease for lease in place.live()}
    order = sorted({lease.gpus[0]: key for key, lease in by_id.items()}.items())
    places = {uuid: index for index, uuid in enumerate(uuids(place))}
    computing, unseen, looping = (key for _, key in sorted((places[uuid], key) for uuid, key in order))
    process = {"gpu": 0, "pid": by_id[computing].pid, "memory": "1GiB", "gpu_percent": 40, "bound": True}
    fault = {"call": "nvmlDeviceGetComputeRunningProcesses*", "gpu": 1, "code": 999}
    write(place, devices=[{"profile": "t4", "count": 4}], processes=[process], faults=[fault])
    with server.talk(computing) as one, server.talk(unseen) as two, server.talk(looping) as three:
        one.run("1")
        two.run("1")
        three.client.execute(BUSY)
        last = server.start()  # and one that does nothing, to see that those are stopped
        with server.talk(last) as session:
            session.run("1")
        place.until(lambda: last not in server.kernels(), "the end of the idle kernel")
        assert set(server.kernels()) == set(kernels)
        assert states(server) == ["active"] * 3
        write(place, devices=[{"profile": "t4", "count": 4}])  # now they do nothing any more
        place.until(lambda: server.kernels() == [looping], "the end of both others")
    server.shut_down(looping)


def stop(server, session, lease):
    """`gpulab stop` as the account itself runs it; its kernel is told first."""
    stopping = subprocess.Popen(
        [sys.executable, "-m", "gpulab", "stop", lease.id, "--grace", "2"],
        env={**os.environ, **server.place.environment()},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert "save what you need" in shown_until(session, "ends this kernel's lease")
    output, _ = stopping.communicate(timeout=60)
    assert stopping.returncode == 0, output
    assert server.place.live() == ()


def test_a_stopped_lease_is_not_handed_back_but_asked_for_anew_by_the_users_restart(mild):
    kernel = mild.start()
    with mild.talk(kernel) as session:
        session.run("1")
        stop(mild, session, mild.place.lease())
    with mild.talk(kernel) as session:
        said = session.run("1")
        assert "this kernel has no GPU: " in said
        assert "ends this kernel's lease, so the kernel was started anew without a GPU" in said
    assert mild.ask("POST", f"api/kernels/{kernel}/restart")[0] == 200
    with mild.talk(kernel) as session:
        assert "is yours" in session.run("1")
    mild.shut_down(kernel)


def test_a_stopped_lease_ends_also_where_nobody_restarts_the_dead_kernel(tmp_path):
    (tmp_path / "config").mkdir()
    settings = {"KernelManager": {"autorestart": False}}
    (tmp_path / "config" / "jupyter_server_config.json").write_text(json.dumps(settings))
    with serving(tmp_path) as server:
        kernel = server.start()
        with server.talk(kernel) as session:
            session.run("1")
            stop(server, session, server.place.lease())
        assert server.kernels() == [kernel], "it is dead, and nobody has removed it"
