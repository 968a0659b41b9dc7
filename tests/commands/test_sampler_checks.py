from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpulab import config
from gpulab.commands.sampler_checks import check_paused, check_sampler, check_service
from gpulab.config import Settings
from gpulab.hardware import hosting, pausing, record
from gpulab.hardware.devices import DriverState, Snapshot
from gpulab.telemetry import sampler


@pytest.fixture
def settings(own_machine: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("GPULAB_SIMULATE", "2xt4")
    settings = config.load()
    yield settings
    with contextlib.suppress(OSError, TypeError):
        os.kill(sampler.running_pid(settings), signal.SIGKILL)  # type: ignore[arg-type]


def sole(findings: Iterator[object]) -> tuple[str, str]:
    ((subject, state, message),) = findings  # type: ignore[misc]
    assert subject in {"sampler", "service"}
    return state, message


def test_a_sampler_that_sleeps_one_that_runs_and_one_that_is_stuck(
    settings: Settings, until: Callable[..., None]
) -> None:
    assert sole(check_sampler(settings)) == ("ok", "not running now; it starts when somebody looks")
    assert sampler.ensure(settings)
    until(lambda: record.latest(settings, max_age=3) is not None, "a record")
    pid = sampler.running_pid(settings)
    assert pid is not None
    state, message = sole(check_sampler(settings))
    assert state == "ok"
    assert message.startswith(f"this account's own, process {pid}; its record is ")
    os.kill(pid, signal.SIGSTOP)
    record.publish(Snapshot(time.time() - 60, DriverState()), settings)
    state, message = sole(check_sampler(settings))
    assert state == "note"
    assert message.startswith(f"process {pid} runs and has written nothing for 1 min")


def test_what_the_last_sampler_said_is_passed_on_without_control_characters(settings: Settings) -> None:
    os.makedirs(settings.machine_dir)
    Path(sampler.log_path(settings)).write_text("first\nThe sampler ends: \x1b[31mno space left\n")
    state, message = sole(check_sampler(settings))
    assert state == "note"
    assert message == "not running now, and the last one said: The sampler ends: ?[31mno space left"


def test_a_directory_that_cannot_be_written_is_a_failure(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPULAB_DATA_DIR", str(tmp_path / "file" / "below"))
    state, message = sole(check_sampler(config.load()))
    assert state == "fail"
    assert "set GPULAB_DATA_DIR to a directory of yours" in message


def test_without_a_service_there_is_nothing_to_say(settings: Settings) -> None:
    assert list(check_service(settings)) == []


def test_a_service_that_publishes_that_has_ended_and_that_is_not_believed(settings: Settings) -> None:
    machine = Path(hosting.machine_path(settings))
    machine.mkdir(parents=True, mode=0o755)
    Path(hosting.host_dir(settings)).chmod(0o755)
    state, message = sole(check_service(settings))
    assert (state, "each account samples for itself" in message) == ("note", True)

    os.mkfifo(machine / "wake", 0o622)
    listening = os.open(machine / "wake", os.O_RDONLY | os.O_NONBLOCK)
    (machine / "serve.lock").write_text("")
    try:
        record.publish(Snapshot(time.time(), DriverState()), settings, host=True)
        state, message = sole(check_service(settings))
        assert state == "ok"
        assert message.startswith(f"publishes for this account in {machine}, as ")
        assert sole(check_sampler(settings))[1].startswith("a service samples for this account;")
        Path(hosting.host_dir(settings)).chmod(0o777)
        state, message = sole(check_service(settings))
        assert state == "note"
        assert "is not read, because others than its owner may write" in message
    finally:
        os.close(listening)


def test_a_file_where_the_service_should_publish_is_found(settings: Settings) -> None:
    place = Path(hosting.host_dir(settings))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("")
    assert sole(check_service(settings)) == (
        "note",
        f"what {place} publishes is not read, because it is no directory; have it removed",
    )


def test_a_pause_is_told_with_its_remedy_and_nothing_when_there_is_none(settings: Settings) -> None:
    assert list(check_paused(settings)) == []
    pausing.pause(settings)
    ((subject, state, message),) = check_paused(settings)
    assert (subject, state) == ("paused", "note")
    assert "gpulab resume" in message
    pausing.resume(settings)
    assert list(check_paused(settings)) == []
