"""Prometheus read back: a real one with two hosts of ours, and answers that are none."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import pwd
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gpulab.errors import GpulabError, RequestError
from gpulab.telemetry import prometheus
from gpulab.telemetry.prometheus import PrometheusError

SECRET = "s3cr3t"


class Answering:
    """A server on loopback that answers all questions alike, and keeps what it was asked."""

    def __init__(self) -> None:
        self.code, self.body, self.headers = 200, b"", {}
        self.asked: list[tuple[str, dict[str, list[str]], Any]] = []
        outer = self

        class Talk(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                outer.asked.append((parts.path, parse_qs(parts.query), self.headers))
                self.send_response(outer.code)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *words: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Talk)
        self.place = f"127.0.0.1:{self.server.server_address[1]}"
        self.url = f"http://{self.place}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, body: object, code: int = 200, **headers: str) -> None:
        self.code, self.headers = code, headers
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()


@pytest.fixture
def answering() -> Iterator[Answering]:
    server = Answering()
    server.answer(matrix())
    yield server
    server.server.shutdown()
    server.server.server_close()


def matrix(*lines: tuple[dict[str, str], list[list[Any]]]) -> dict[str, Any]:
    result = [{"metric": labels, "values": values} for labels, values in lines]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def test_lines_have_their_labels_and_what_is_no_number_is_none(answering: Answering) -> None:
    values = [[100, "1.5"], [115.25, "NaN"], [130, "+Inf"], [145, "1e3"]]
    answering.answer(matrix(({"host": "a", "gpu": "0"}, values), ({}, [])))
    first, second = prometheus.read_range(answering.url, "up", 100, 145, 15)
    assert first == ({"host": "a", "gpu": "0"}, (100, 115.25, 130, 145), (1.5, None, None, 1000))
    assert second == ({}, (), ())
    ((path, question, _),) = answering.asked
    assert path == "/api/v1/query_range"
    assert question == {"query": ["up"], "start": ["100.000"], "end": ["145.000"], "step": ["15.000"]}


def test_an_address_may_have_a_path_and_a_login_that_goes_to_nobody_else(answering: Answering) -> None:
    other = Answering()
    other.answer(matrix())
    answering.answer(b"", 302, Location=f"{other.url}/elsewhere")
    with_login = f"http://ada:{SECRET}%40@{answering.place}/prometheus/"
    assert prometheus.read_range(with_login, "up", 0, 1) == []
    ((path, _, headers),) = answering.asked
    assert path == "/prometheus/api/v1/query_range"
    assert base64.b64decode(headers["Authorization"].split()[1]).decode() == f"ada:{SECRET}@"
    ((_, _, headers),) = other.asked
    assert "Authorization" not in headers
    other.server.shutdown()
    other.server.server_close()


@pytest.mark.parametrize(
    ("span", "step", "expected"), [(300, None, 1), (86400 * 365, 1, 2867), (10, 0, 0.001), (0, None, 0.001)]
)
def test_the_step_leaves_no_more_points_than_prometheus_gives(
    answering: Answering, span: float, step: float | None, expected: float
) -> None:
    prometheus.read_range(answering.url, "up", 1000, 1000 + span, step)
    asked = float(answering.asked[0][1]["step"][0])
    assert asked == pytest.approx(expected, rel=0.01)
    assert span / asked + 1 <= 11_000


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (
            {"status": "error", "error": "parse error:\nunexpected end"},
            400,
            "400: parse error: unexpected end",
        ),
        (b"<html>not here</html>", 404, "404: Not Found"),
        (b"", 502, "502: Bad Gateway"),
        (b"", 401, "asks for a login"),
        (b"<html>a proxy</html>", 200, "is no Prometheus"),
        (b"[" * 100_000, 200, "is no Prometheus"),
        ({"status": "success"}, 200, "is no Prometheus"),
        ({"status": "success", "data": {"resultType": "vector", "result": []}}, 200, "is no Prometheus"),
        (matrix(({}, [["x", "1"]])), 200, "is no Prometheus"),
        (matrix(({}, [[1]])), 200, "is no Prometheus"),
        (matrix(({}, [[1, {}]])), 200, "is no Prometheus"),
        (
            {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": 3}]}},
            200,
            "no Prometheus",
        ),
        ([], 200, "is no Prometheus"),
    ],
)
def test_what_is_no_answer_is_one_sentence_without_the_password(
    answering: Answering, body: object, code: int, words: str
) -> None:
    answering.answer(body, code)
    with pytest.raises(PrometheusError) as caught:
        prometheus.read_range(f"http://ada:{SECRET}@{answering.place}", "up", 0, 1)
    message = str(caught.value)
    assert words in message
    assert answering.place in message
    assert_one_sentence(message)
    assert_silent(caught.value)


def test_devices_of_all_hosts_come_as_points_and_a_gap_begins_with_an_empty_one(answering: Answering) -> None:
    labels = {"host": "a", "uuid": "GPU-1"}
    answering.answer(matrix((labels, [[1000, "0.5"], [1100, "0.5"], [1400, "1"]])))
    points = prometheus.reduced(answering.url, 900, 1500, points=6)["a"]["GPU-1"]
    assert [point.time for point in points] == [950, 1050, 1150, 1350]
    assert [point.gpu_percent for point in points] == [50, 50, None, 100]
    assert points[2][1:] == (None,) * 6
    questions = {question["query"][0] for _, question, _ in answering.asked}
    assert "max by (host, uuid) (max_over_time(gpulab_device_utilization_ratio[120000ms]))" in questions


def assert_one_sentence(message: str) -> None:
    assert "\n" not in message
    assert message.endswith(".")
    assert len(message) < 500


def assert_silent(error: BaseException | None) -> None:
    """Neither the error nor what a traceback would show with it tells the password."""
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "prometheus:9090",
        "file:///etc/passwd",
        "http://",
        "http://a:b:c",
        "http://a b",
        "ftp://a",
        "http://\n",
    ],
)
def test_what_is_no_address_of_a_web_server_is_refused(url: str) -> None:
    with pytest.raises(RequestError, match="is no address of a Prometheus"):
        prometheus.read_range(url, "up", 0, 1)


@pytest.mark.parametrize(
    "wrong", [f"http://u:{SECRET}@h:x", f"http://u:a/{SECRET}@h", f"u:{SECRET}@host:9090"]
)
def test_a_wrong_address_is_told_without_its_password(wrong: str) -> None:
    with pytest.raises(RequestError) as caught:
        prometheus.read_range(wrong, "up", 0, 1)
    assert_silent(caught.value)


@pytest.mark.parametrize("since", [math.nan, math.inf, 2.0])
def test_a_time_that_ends_before_it_begins_is_refused(since: float) -> None:
    with pytest.raises(RequestError, match="is no range of time"):
        prometheus.read_range("http://h", "up", since, 1.0)


def test_nobody_there_is_told_with_the_remedy() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://ada:{SECRET}@127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(PrometheusError, match=r"cannot be reached .*refused.*see that it runs") as caught:
            prometheus.read_range(url, "up", 0, 1)
    assert_silent(caught.value)


@pytest.mark.parametrize("says", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"])
def test_a_server_that_stops_in_the_middle_or_speaks_otherwise_is_told(says: bytes) -> None:
    with closing_after(says) as url, pytest.raises(GpulabError) as caught:
        prometheus.read_range(url, "up", 0, 1)
    assert_one_sentence(str(caught.value))


def test_a_server_that_never_answers_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(PrometheusError, match=r"cannot be reached .*timed out"):
            prometheus.read_range(url, "up", 0, 1, timeout=0.2)


@contextlib.contextmanager
def closing_after(says: bytes) -> Iterator[str]:
    """A server that says this to whoever comes first, and hangs up."""

    def talk() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(says)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(10)


class Host:
    """A machine of its own on this one: what it simulates, its directories, its name, and its exporter."""

    def __init__(self, folder: Path, name: str, machine: dict[str, Any]) -> None:
        self.name = name
        folder.mkdir()
        (folder / "leases").mkdir(mode=0o700)
        (folder / "machine.json").write_text(json.dumps(machine))
        self.environment = {
            **os.environ,
            "GPULAB_SIMULATE": str(folder / "machine.json"),
            "GPULAB_LEASE_DIR": str(folder / "leases"),
            "GPULAB_DATA_DIR": str(folder / "data"),
        }
        self.exporter = self.start("serve", "--port", "0", "--host-name", name)
        line = self.exporter.stdout.readline()
        self.place = line.partition("http://")[2].partition("/metrics")[0]
        assert self.place, self.exporter.communicate()

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "gpulab", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )


@contextlib.contextmanager
def killed(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def scraping(folder: Path, *places: str) -> Iterator[str]:
    """Debian's Prometheus, which asks these addresses each second; its own address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    job = {"job_name": "gpulab", "scrape_interval": "1s", "static_configs": [{"targets": list(places)}]}
    (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": [job]}))  # JSON is YAML, too
    command = [
        *("prometheus", f"--config.file={folder / 'prometheus.yml'}"),
        *(f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={place}", "--log.level=error"),
    ]
    with (
        open(folder / "prometheus.log", "w") as log,
        killed(subprocess.Popen(command, stdout=log, stderr=log, text=True)),
    ):
        yield f"http://{place}"


def moving(**levels: Any) -> dict[str, Any]:
    return {"profile": "h100", **levels}


@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="there is no prometheus; apt install prometheus"
)
def test_a_real_prometheus_tells_what_happened_on_two_hosts_and_when_one_was_killed(
    tmp_path: Path, until: Callable[..., None]
) -> None:
    alpha = Host(
        tmp_path / "alpha",
        "alpha",
        {
            "devices": [
                moving(uuid="GPU-a0", utilization=25, memory_used="20GiB", power=300, temperature=55),
                moving(uuid="GPU-a1", utilization=0, memory_used="1GiB", power=80, temperature=30),
            ]
        },
    )
    beta = Host(
        tmp_path / "beta",
        "beta",
        {"devices": [moving(uuid="GPU-b0", utilization=75, memory_used="60GiB", power=650, temperature=70)]},
    )
    began = time.time()
    with (
        killed(alpha.exporter),
        killed(beta.exporter),
        killed(alpha.start("run", "--", "sleep", "300")),
        scraping(tmp_path, alpha.place, beta.place) as url,
    ):

        def lines(query: str, since: float = began) -> list[prometheus.Line]:
            try:
                return prometheus.read_range(url, query, since, step=1)
            except PrometheusError:
                return []  # it has yet to start

        until(
            lambda: (
                [len(line.times) >= 3 for line in lines("gpulab_device_power_watts")] == [True] * 3
                and lines("gpulab_device_leases")
            ),
            "three scrapes of both hosts",
            timeout=60,
        )
        watts = {
            (line.labels["host"], line.labels["uuid"]): line for line in lines("gpulab_device_power_watts")
        }
        assert {device: set(line.values) for device, line in watts.items()} == {
            ("alpha", "GPU-a0"): {300.0},
            ("alpha", "GPU-a1"): {80.0},
            ("beta", "GPU-b0"): {650.0},
        }
        (lease,) = lines("gpulab_device_leases")
        assert lease.labels["host"] == "alpha"
        assert lease.labels["uuid"] == "GPU-a1"  # the idle one
        assert lease.labels["user"] == pwd.getpwuid(os.getuid()).pw_name
        assert set(lease.values) == {1.0}

        by_host = prometheus.reduced(url, began)
        assert {host: set(devices) for host, devices in by_host.items()} == {
            "alpha": {"GPU-a0", "GPU-a1"},
            "beta": {"GPU-b0"},
        }
        for point in by_host["beta"]["GPU-b0"]:
            assert point[1:] == (75, 75, 60 * 2**30, 60 * 2**30, 650, 70)
        assert set(prometheus.reduced(url, began, hosts=["beta", "be.a"])) == {"beta"}
        assert prometheus.reduced(url, began, hosts=["be.a"]) == {}
        assert prometheus.reduced(url, began - 86400, began - 3600) == {}

        beta.exporter.kill()
        gone = time.time()

        def is_told() -> bool:
            now = time.time()
            seen = {
                line.labels["host"]: line.times[-1] for line in lines("gpulab_up", gone - 5) if line.times
            }
            return seen.get("alpha", 0) >= now - 2 and now - seen.get("beta", now) >= 4

        until(is_told, "the end of the killed exporter's series", timeout=60)
        up = {line.labels["instance"]: line.values[-1] for line in lines("up", gone)}
        assert up == {alpha.place: 1, beta.place: 0}
        with pytest.raises(PrometheusError, match=r"refuses \(400: .*parse error"):
            prometheus.read_range(url, "sum(", began)
