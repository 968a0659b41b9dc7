"""A Jupyter server offers the metrics if it is asked to, and only to whoever may use it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from traitlets.config import Config

from gpulab import config
from gpulab.jupyter.routes import offers_metrics
from gpulab.telemetry import sampler

from .conftest import TOKEN, Server, until


def scrape(server: Server, token: str = TOKEN) -> tuple[int, str, str]:
    """The code, the content type and the text."""
    request = urllib.request.Request(
        f"{server.url}gpulab/metrics", headers={"Authorization": f"token {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, "", error.read().decode()


def values(text: str, name: str) -> list[float]:
    found = text_string_to_metric_families(text)
    return [sample.value for family in found for sample in family.samples if sample.name == name]


@pytest.fixture
def no_sampler_left(place: Any) -> Iterator[None]:
    yield
    pid = sampler.running_pid(config.load())
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("no_sampler_left")
def test_a_server_that_is_asked_to_offers_what_the_sampler_sees_to_its_users_alone(place, new_server):
    folder = place.root / "config"
    folder.mkdir()
    (folder / "jupyter_server_config.json").write_text(json.dumps({"Gpulab": {"metrics": True}}))
    server = new_server(GPULAB_METRICS="0")
    assert scrape(server, token="guessed")[0] == 403
    code, kind, text = scrape(server)
    assert (code, kind.split(";")[0]) == (200, "text/plain")

    def seen() -> str | None:
        text = scrape(server)[2]
        return text if values(text, "gpulab_up") == [1.0] else None

    text = until(seen, "the sampler's first sample")
    assert len(values(text, "gpulab_device_memory_used_bytes")) == 4
    assert values(text, "gpulab_simulated") == [1.0]
    kernel = server.start()
    assert sum(values(scrape(server)[2], "gpulab_device_leases")) == 1
    server.shut_down(kernel)


def test_metrics_are_off_unless_somebody_turns_them_on(server):
    assert scrape(server)[0] == 404


@pytest.mark.parametrize(
    ("told", "variable", "offered"),
    [(None, "1", True), (None, "0", False), (True, "0", True), (False, "1", False), ("True", "0", True)],
)
def test_the_servers_configuration_goes_before_the_variable(monkeypatch, told, variable, offered):
    monkeypatch.setenv("GPULAB_METRICS", variable)
    configuration = Config() if told is None else Config({"Gpulab": {"metrics": told}})
    assert offers_metrics(configuration) is offered
