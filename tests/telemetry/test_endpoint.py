"""The address that Prometheus scrapes answers whatever its other clients do."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from gpulab.telemetry.exporting import endpoint
from gpulab.telemetry.exporting.endpoint import Endpoint, EndpointError


def answer(accept: str | None) -> tuple[bytes, str]:
    return f"asked for {accept}\n".encode(), "text/test"


@pytest.fixture
def place() -> Iterator[Endpoint]:
    started = Endpoint("127.0.0.1", 0, answer)
    started.start()
    yield started
    started.close()


def port_of(place: Endpoint) -> int:
    return int(place.url.removesuffix("/metrics").rpartition(":")[2])


def ask(place: Endpoint, path: str = "/metrics", method: str = "GET") -> tuple[int, str, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(place), timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, headers={"Accept": "x"})
        found = connection.getresponse()
        return found.status, found.read().decode(), found.getheader("Content-Type")


def test_the_metrics_have_one_address_and_the_rest_is_not_found(place: Endpoint) -> None:
    assert ask(place) == (200, "asked for x\n", "text/test")
    assert ask(place, "/metrics?x=1")[0] == 200
    assert ask(place, method="HEAD")[:2] == (200, "")
    assert ask(place, method="POST")[0] == 501
    assert ask(place, "/")[:2] == (200, "gpulab: the metrics are at /metrics\n")
    assert ask(place, "/../etc/passwd")[0] == 404


def test_clients_that_say_nothing_or_half_keep_nobody_from_his_answer(
    place: Endpoint, until: Callable[..., None]
) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(100):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", port_of(place))))
            silent.sendall(b"GET /metrics HT" if number % 2 else b"")
        assert ask(place)[0] == 200
        until(lambda: threading.active_count() < 40, "the end of all but the newest 32")


def test_a_client_that_never_ends_its_question_is_let_go_of(
    place: Endpoint, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    monkeypatch.setattr(endpoint, "_MOST_SECONDS", 0.1)
    with socket.create_connection(("127.0.0.1", port_of(place))) as slow:

        def is_cut_off() -> bool:
            try:
                slow.sendall(b"X")  # each byte is a sign of life, so no time limit of a single read ends it
            except OSError:
                return True
            return False

        slow.sendall(b"GET /metrics HTTP/1.0\r\nX: ")
        until(is_cut_off, "the end of the slow client")
    assert ask(place)[0] == 200


def test_metrics_that_cannot_be_made_are_an_answer_too_and_told_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(accept: str | None) -> tuple[bytes, str]:
        raise OSError(24, "too many open files")

    place = Endpoint("127.0.0.1", 0, broken)
    place.start()
    assert ask(place)[:2] == (500, "The metrics cannot be made; see the log.\n")
    place.close()
    assert "too many open files" in caplog.text


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_a_port_that_is_taken_is_one_sentence_with_what_to_do(address: str) -> None:
    try:
        first = Endpoint(address, 0, answer)
    except EndpointError:
        assert address == "::1"
        pytest.skip("this machine has no IPv6")
    with pytest.raises(EndpointError, match="choose another --port or --address, or leave them out with"):
        Endpoint(address, port_of(first), answer)
    first.close()
    again = Endpoint(address, port_of(first) if os.name == "posix" else 0, answer)
    again.close()


@pytest.mark.parametrize("address", ["203.0.113.7", "no such host", "a" * 70, "ä" * 300])
def test_an_address_that_is_not_this_machines_is_refused(address: str) -> None:
    with pytest.raises(EndpointError, match="cannot be offered at"):
        Endpoint(address, 0, answer)


def test_two_addresses_are_shown_as_one_may_click_them() -> None:
    with contextlib.suppress(EndpointError):
        six = Endpoint("::1", 0, answer)
        assert six.url.startswith("http://[::1]:")
        six.close()
