from __future__ import annotations

import contextlib
import itertools
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gpulab
from gpulab.config import Settings
from gpulab.hardware import record
from gpulab.telemetry import sampler
from gpulab.widgets import pump
from gpulab.widgets.pump import Pump, Scene

Until = Callable[..., None]


class Recorder:
    """A view that keeps what it is told."""

    def __init__(self, mode: str = "visible") -> None:
        self.mode = mode
        self.scenes: list[Scene] = []
        self.windows: list[bytes] = []
        self.samples: list[bytes] = []

    def show(self, scene: Scene) -> None:
        self.scenes.append(scene)

    def show_window(self, packed: bytes, age: float) -> None:  # noqa: ARG002
        self.windows.append(packed)

    def show_samples(self, packed: bytes, age: float) -> None:  # noqa: ARG002
        self.samples.append(packed)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A silence that a test can wait for."""
    monkeypatch.setattr(pump, "SILENCE_SECONDS", 1.0)
    yield
    for thread in threading.enumerate():
        if thread.name == "gpulab-pump":
            thread.join(timeout=15)
            assert not thread.is_alive()


def test_a_view_gets_all_there_is_at_once_and_then_a_sample_each_second(
    settings: Settings, short: None, until: Until
) -> None:
    view, pumping = Recorder(), Pump()
    pumping.attach(view)
    assert [len(scene.devices) for scene in view.scenes[-1:]] == [8]
    assert view.scenes[-1].machine["simulated"] is True
    assert len(view.windows) >= 1
    begun = record.latest(settings)
    assert begun is not None
    until(lambda: pumping.beat(view) or len(view.samples) >= 3, "three samples")
    now = record.latest(settings)
    assert now is not None
    assert len(view.samples) <= now.time - begun.time + 1.5


def test_two_views_share_one_thread(settings: Settings, short: None, until: Until) -> None:
    first, second, pumping = Recorder(), Recorder("team"), Pump()
    pumping.attach(first)
    pumping.attach(second)
    assert len([thread for thread in threading.enumerate() if thread.name == "gpulab-pump"]) == 1
    until(
        lambda: pumping.beat(first) or pumping.beat(second) or (first.samples and second.samples), "samples"
    )
    assert second.scenes[-1].machine["mode"] == "team"
    assert second.scenes[-1].machine["host"]


def times(packed: bytes) -> list[float]:
    """Seconds of the rows of a window of eight devices."""
    base = struct.unpack_from("<d", packed)[0]
    floats = struct.unpack(f"<{(len(packed) - 16) // 4}f", packed[16:])
    return [base + offset for offset in floats[:: 1 + 4 * 8]]


def test_it_stops_when_no_view_answers_and_resumes_with_what_was_sampled_meanwhile(
    settings: Settings, short: None, until: Until
) -> None:
    view, pumping = Recorder(), Pump()
    pumping.attach(view)
    until(lambda: not pumping.running, "the end of the thread")
    windows, seen = len(view.windows), times(view.windows[-1])[-1]
    until(lambda: (now := record.latest(settings)) is not None and now.time > seen + 3, "samples nobody saw")
    assert len(view.windows) == windows
    pumping.beat(view)
    assert pumping.running
    until(lambda: len(view.windows) > windows, "a fresh window")
    filled = [time for time in times(view.windows[-1]) if time >= seen - 0.01]
    assert all(after - before < 1.8 for before, after in itertools.pairwise(filled))
    assert filled[-1] > seen + 3


def test_a_view_that_is_gone_is_not_answered_for(settings: Settings, short: None, until: Until) -> None:
    view, pumping = Recorder(), Pump()
    pumping.attach(view)
    del view
    until(lambda: not pumping.running, "the end of the thread")


def test_a_kernel_that_cannot_hear_is_not_a_silence(settings: Settings, short: None, until: Until) -> None:
    waiting: list[Callable[[], None]] = []

    def blocked(callback: Callable[[], None]) -> bool:
        waiting.append(callback)
        return True

    view, pumping = Recorder(), Pump(blocked)
    pumping.attach(view)
    until(lambda: len(view.samples) >= 3, "samples beyond the silence")
    assert pumping.running
    while pumping.running:  # the cell ends: the event loop turns again, and still nobody answers
        with contextlib.suppress(IndexError):
            waiting.pop()()


def test_a_cell_that_starts_wakes_it(settings: Settings, short: None, until: Until) -> None:
    view, pumping = Recorder(), Pump()
    pumping.attach(view)
    until(lambda: not pumping.running, "the end of the thread")
    pumping.wake()
    assert pumping.running


def test_a_killed_sampler_comes_back_and_the_stream_goes_on(
    settings: Settings, short: None, until: Until
) -> None:
    view, pumping = Recorder(), Pump()
    pumping.attach(view)
    until(lambda: pumping.beat(view) or view.samples, "a sample")
    killed = sampler.running_pid(settings)
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    stopped = record.latest(settings)
    until(lambda: pumping.beat(view) or record.latest(settings) != stopped, "another sampler")
    assert sampler.running_pid(settings) != killed
    samples = len(view.samples) + len(view.windows)
    until(lambda: pumping.beat(view) or len(view.samples) + len(view.windows) > samples, "its samples")


def test_a_view_that_raises_harms_nobody_else(
    settings: Settings, short: None, until: Until, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(Recorder):
        def show_samples(self, packed: bytes, age: float) -> None:  # noqa: ARG002
            raise RuntimeError("a comm that is closed")

    pumping, broken, view = Pump(), Broken(), Recorder()
    pumping.attach(broken)
    pumping.attach(view)
    until(
        lambda: pumping.beat(view) or pumping.beat(broken) or len(view.samples) >= 3, "samples for the other"
    )
    assert capsys.readouterr() == ("", "")


def test_the_own_lease_and_the_mask_are_followed_while_it_runs(
    settings: Settings, short: None, until: Until
) -> None:
    view, pumping = Recorder(), Pump()
    pumping.attach(view)
    assert [entry["visible"] for entry in view.scenes[-1].devices] == [True] * 8
    with gpulab.acquire(memory="8GiB") as lease:

        def seen() -> tuple[list[str], list[str]]:
            pumping.beat(view)
            devices = view.scenes[-1].devices
            return [d["uuid"] for d in devices if d["mine"]], [d["uuid"] for d in devices if d["visible"]]

        until(lambda: seen() == (list(lease.gpus),) * 2, "the own GPU to be marked, and no other to be seen")
        entry = next(entry for entry in view.scenes[-1].devices if entry["mine"])
        assert entry["share_bytes"] == 8 * 2**30


def test_where_nothing_can_be_sampled_the_view_says_why(
    own_machine: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_machine / "file").write_text("")
    monkeypatch.setenv("GPULAB_DATA_DIR", str(own_machine / "file"))
    monkeypatch.setenv("GPULAB_SIMULATE", "1xt4")
    view = Recorder()
    Pump().attach(view)
    trouble = view.scenes[-1].machine["trouble"]
    assert trouble.startswith("GPUs cannot be sampled: ")
    assert trouble.endswith("cannot be written; point GPULAB_DATA_DIR elsewhere.")


def test_a_data_directory_that_vanishes_is_no_reason_to_stop(
    settings: Settings, short: None, until: Until
) -> None:
    view, pumping = Recorder(), Pump()
    pumping.attach(view)
    os.replace(
        settings.data_dir, f"{settings.data_dir}-of-before"
    )  # at once: its sampler is writing in there
    stopped = len(view.samples) + len(view.windows)
    until(
        lambda: pumping.beat(view) or len(view.samples) + len(view.windows) > stopped + 1, "the stream again"
    )
