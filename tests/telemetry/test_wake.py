"""Whoever wants a sample now asks by a byte, and neither side can hold up the other."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
from pathlib import Path

import pytest

from gpulab.config import Settings
from gpulab.telemetry.sampling.wake import Stop, Wake, look, wake_path


def test_who_asks_ends_the_wait_and_many_who_ask_end_one(settings: Settings) -> None:
    wake = Wake(wake_path(settings), Stop())

    def ask() -> None:
        for _ in range(1000):
            look(settings)

    threading.Timer(0.05, ask).start()
    assert wake.wait(30)
    while wake.wait(0.1):  # those who were still writing
        pass
    look(settings)
    assert wake.wait(30)
    assert not wake.wait(0.01)
    wake.close()


def test_a_flood_of_questions_blocks_nobody(settings: Settings) -> None:
    wake = Wake(wake_path(settings), Stop())
    descriptor = os.open(wake_path(settings), os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while os.write(descriptor, bytes(4096)):
            pass
    look(settings)
    assert wake.wait(30)
    wake.close()
    os.close(descriptor)


def test_without_a_sampler_asking_does_nothing(settings: Settings) -> None:
    look(settings)
    os.mkfifo(wake_path(settings))
    look(settings)  # nobody reads: it does not wait for one
    os.unlink(wake_path(settings))
    Path(wake_path(settings)).write_text("mine")
    look(settings)
    assert Path(wake_path(settings)).read_text() == "mine"


@pytest.mark.parametrize("kind", ["file", "link", "fifo"])
def test_what_lies_in_its_place_is_replaced(settings: Settings, tmp_path: Path, kind: str) -> None:
    path, other = Path(wake_path(settings)), tmp_path / "other"
    other.write_text("kept")
    if kind == "file":
        path.write_text("")
    elif kind == "link":
        path.symlink_to(other)
    else:
        os.mkfifo(path, 0o644)
    wake = Wake(str(path), Stop(), 0o622)
    assert stat.S_IMODE(path.lstat().st_mode) == 0o622
    assert stat.S_ISFIFO(path.lstat().st_mode)
    assert other.read_text() == "kept"
    look(settings)
    assert wake.wait(30)
    wake.close()


@pytest.mark.parametrize("place", ["wake", "missing/wake"])
def test_time_passes_and_the_order_to_stop_ends_the_wait_with_a_fifo_and_without(
    tmp_path: Path, place: str
) -> None:
    stop = Stop()
    wake = Wake(str(tmp_path / place), stop)
    assert not wake.wait(0.01)
    assert not stop.wait(0.01)
    threading.Timer(0.05, stop.set).start()
    assert not wake.wait(30)  # nobody asked
    assert stop.is_set()
    for _ in range(100_000):
        stop.set()  # never blocks
    assert stop.wait(30)
    wake.close()


def test_a_signal_may_order_to_stop_at_any_moment() -> None:
    """Also while the order is looked at: a lock in it would wait for itself."""
    stop = Stop()
    orders = 0

    def order(*_: object) -> None:
        nonlocal orders
        stop.set()
        orders += 1

    before = signal.signal(signal.SIGALRM, order)
    signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
    try:
        while orders < 500:
            stop.wait(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert stop.is_set()
