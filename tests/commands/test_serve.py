"""`gpulab serve` as systemd, an administrator and Prometheus meet it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpulab import config
from gpulab.hardware import record

Wait = Callable[..., None]


_AS_ANOTHER = """
import contextlib, encodings.idna, importlib, io, os, pathlib, sqlite3, sys
import gpulab.telemetry, prometheus_client.exposition
from gpulab import cli
place = pathlib.Path(gpulab.telemetry.__file__).parent
for path in place.rglob("[a-z]*.py"):  # they may lie where another account may not read
    importlib.import_module(".".join(("gpulab.telemetry", *path.relative_to(place).with_suffix("").parts)))
with contextlib.redirect_stdout(io.StringIO()):
    cli.main(["status", "--json"])
    cli.main(["serve", "--help"])
user = int(sys.argv.pop(1))
os.chdir("/")
os.setgroups([])
os.setgid(user)
os.setuid(user)
sys.exit(cli.main())
"""


class Service:
    """A running `gpulab serve`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.line = ""

    def told(self) -> str:
        """The one line that it says once it serves; or what it says at its end, if it ends."""
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        return self.line or self.end_of_it()[1]

    def end_of_it(self) -> tuple[int, str]:
        """The exit code and what was said on stderr."""
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.end_of_it()[0]

    @property
    def port(self) -> int:
        return int(self.line.partition("http://")[2].partition("/metrics")[0].rpartition(":")[2])

    def scrape(self) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()

    def value(self, name: str, **labels: str) -> float | None:
        """Of the first series with these labels."""
        for family in text_string_to_metric_families(self.scrape()):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return None


@pytest.fixture
def serve() -> Iterator[Callable[..., Service]]:
    """Starts `gpulab serve WORDS`; whatever is left of it is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str, user: int | None = None, **variables: str) -> Service:
        start = ["-m", "gpulab"] if user is None else ["-c", _AS_ANOTHER, str(user)]
        process = subprocess.Popen(
            [sys.executable, *start, "serve", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )
        started.append(process)
        return Service(process)

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_in_one_line_what_it_does_and_ends_cleanly(serve: Any, until: Wait, number: int) -> None:
    service = serve("--port", "0")
    line = service.told()
    assert "8 GPUs" not in line  # what there is, is for the metrics; a line about one instant grows old
    assert "of this account" in line
    assert "simulated" in line
    assert line.count("http://127.0.0.1:") == 1
    until(lambda: service.value("gpulab_up") == 1, "the first sample")
    assert service.value("gpulab_device_memory_size_bytes", gpu="7") == 81559 * 2**20
    service.process.send_signal(number)
    assert service.end_of_it() == (0, "")


def test_where_no_driver_answers_it_says_so_once_with_the_reason_and_goes_on(
    serve: Any, until: Wait, tmp_path: Path
) -> None:
    scenario = tmp_path / "machine.json"
    faults = [{"call": "nvmlInit*", "code": 12}]
    scenario.write_text(json.dumps({"devices": [{"profile": "t4"}], "faults": faults}))
    service = serve("--port", "0", GPULAB_SIMULATE=str(scenario))
    service.told()
    assert service.process.stderr is not None
    line = service.process.stderr.readline()
    assert line.startswith("No GPU is sampled now: NVIDIA's library libnvidia-ml is not on this machine")
    assert "goes on" in line
    scenario.write_text(json.dumps({"devices": [{"profile": "t4"}]}))
    until(lambda: service.value("gpulab_up") == 1, "the driver")
    service.process.send_signal(signal.SIGTERM)
    assert service.end_of_it() == (0, "")


def test_what_it_samples_is_the_record_that_others_read(serve: Any, until: Wait) -> None:
    service = serve("--port", "0")
    service.told()
    settings = config.load()
    until(lambda: record.latest(settings, max_age=3.0), "a record")
    found = record.latest(settings)
    assert found is not None
    assert len(found.devices) == 8
    assert service.end() == 0


def test_a_second_one_ends_at_once_and_leaves_the_first_alone(serve: Any, until: Wait) -> None:
    first = serve("--port", "0")
    first.told()
    code, errors = serve("--port", "0").end_of_it()
    assert code == 1
    assert len(errors.splitlines()) == 1
    assert str(first.process.pid) in errors
    until(lambda: first.value("gpulab_up") == 1, "the first one at work")
    assert first.end() == 0


def test_a_port_that_is_taken_is_told_and_nothing_is_half_done(serve: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, errors = serve("--port", port).end_of_it()
        assert (code, len(errors.splitlines())) == (125, 1)
        assert f"cannot be offered at 127.0.0.1:{port}" in errors
        without = serve("--port", port, "--no-metrics")
        line = without.told()
        assert "http" not in line
        assert without.end() == 0


def test_a_port_that_is_none_is_64(gpulab: Any) -> None:
    for wrong in ("-1", "65536", "http"):
        result = gpulab("serve", "--port", wrong)
        assert (result.returncode, result.stdout) == (64, "")


def test_clients_that_hang_stop_neither_samples_nor_scrapes(serve: Any, until: Wait) -> None:
    service = serve("--port", "0")
    service.told()
    until(lambda: service.value("gpulab_up") == 1, "the first sample")
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
            silent.sendall(b"GET /metrics")
        before = record.latest(config.load())
        assert before is not None
        until(lambda: record.latest(config.load()).time >= before.time + 2, "two more samples")
        assert service.value("gpulab_up") == 1


def test_a_driver_that_hangs_stops_no_scrape_and_is_seen_to_come_back(
    serve: Any, until: Wait, tmp_path: Path
) -> None:
    machine = {"devices": [{"profile": "t4", "count": 2}]}
    path = tmp_path / "machine.json"

    def write(**more: Any) -> None:
        (tmp_path / "new").write_text(json.dumps({**machine, **more}))
        os.replace(tmp_path / "new", path)

    write()
    service = serve("--port", "0", GPULAB_SIMULATE=str(path))
    service.told()
    until(lambda: service.value("gpulab_up") == 1, "the first sample")
    write(faults=[{"call": "*", "hang": True}])

    def is_seen() -> bool:
        silent = service.value("gpulab_device_state", state="ok") in (None, 0.0)
        return silent and (service.value("gpulab_up") == 0 or silent)

    until(is_seen, "the silence of the driver")
    write()
    until(
        lambda: service.value("gpulab_device_power_watts", gpu="1") is not None, "its coming back", timeout=40
    )
    assert service.end() == 0


def test_dcgms_names_and_the_hosts_name_are_as_asked_for(serve: Any, until: Wait) -> None:
    service = serve("--port", "0", "--dcgm", "Hostname", "--host-name", "node7")
    service.told()
    until(lambda: service.value("gpulab_up", host="node7") == 1, "the first sample")
    assert service.value("DCGM_FI_DEV_FB_USED", Hostname="node7", gpu="0") is not None


def test_systemd_is_told_that_it_is_ready_alive_and_ending(serve: Any, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        service = serve("--port", "0", NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="600000")
        assert systemd.recv(4096).startswith(b"READY=1\nSTATUS=")
        assert systemd.recv(4096) == b"WATCHDOG=1"
        assert systemd.recv(4096) == b"WATCHDOG=1"
        assert service.end() == 0
        told = []
        while select.select([systemd], [], [], 0)[0]:
            told.append(systemd.recv(4096))
        assert told[-1] == b"STOPPING=1"


@pytest.mark.skipif(os.geteuid() != 0, reason="another account is needed, so root")
def test_in_the_hosts_directory_only_whom_root_chose_may_publish(
    serve: Any, until: Wait, passable: Path
) -> None:
    leases = passable / "host-leases"
    leases.mkdir()
    leases.chmod(0o1777)
    (leases / "guard").touch(0o444)
    data = passable / "service"
    data.mkdir()
    os.chown(data, 64321, 64321)
    place = {
        "GPULAB_LEASE_DIR": str(leases),
        "GPULAB_DATA_DIR": str(data),
        "XDG_CONFIG_HOME": str(data),
        "HOME": str(data),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    code, errors = serve("--port", "0", user=64321, **place).end_of_it()
    assert (code, len(errors.splitlines())) == (125, 1)
    assert "sudo gpulab setup" in errors
    host = leases / "host"
    host.mkdir()
    os.chown(host, 0, 64321)
    host.chmod(0o775)
    service = serve("--port", "0", user=64321, **place)
    assert "of the whole host" in service.told()
    until(lambda: service.value("gpulab_up") == 1, "the first sample")
    assert service.value("gpulab_info", lease_scope="host") == 1
    assert service.end() == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_the_unit_of_the_docs_is_one_that_systemd_understands(tmp_path: Path) -> None:
    docs = Path(__file__).parents[2] / "docs" / "administration.md"
    (unit,) = re.findall(r"```ini\n(.*?)```", docs.read_text(), re.DOTALL)
    assert "ExecStart=/opt/gpulab/bin/gpulab serve\n" in unit
    path = tmp_path / "gpulab.service"
    path.write_text(unit.replace("/opt/gpulab/bin/gpulab", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if "gpulab" in line]) == (0, [])
