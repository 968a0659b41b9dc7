"""Leases come to the sampler soon, and never hold it up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpulab import config
from gpulab.allocation.leases import LeaseRecord
from gpulab.config import Settings
from gpulab.telemetry.sampling.lease_reading import LeaseReading

HOLD = "import gpulab; lease = gpulab.acquire(); print(lease.id, flush=True); input()"


def test_a_lease_is_news_once_and_its_end_is_too(settings: Settings, until: Callable[..., None]) -> None:
    reading = LeaseReading(settings)
    news: list[tuple[LeaseRecord, ...]] = []

    def look() -> tuple[LeaseRecord, ...]:
        found = reading.news()
        if found is not None:
            news.append(found)
        return reading.known or ()

    look()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    name = holder.stdout.readline().strip()
    until(lambda: [lease.id for lease in look()] == [name], "the lease")
    told = len(news)
    assert reading.news() is None
    assert len(news) == told
    holder.kill()  # which changes nothing in the directory
    holder.communicate()
    until(lambda: look() == (), "its end", timeout=20)


def test_what_everybody_reads_tells_a_notebook_of_the_service_s_own_account_only_if_all_may_know(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "exam.ipynb")
    command = [sys.executable, "-c", HOLD]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        for public, names, told in (
            (False, "none", "exam.ipynb"),
            (True, "none", None),
            (True, "full", "exam.ipynb"),
        ):
            reading = LeaseReading(settings._replace(names=names), public=public)
            until(lambda reading=reading: reading.news() is not None, "the lease")
            assert [lease.notebook for lease in reading.known or ()] == [told]
    finally:
        holder.kill()
        holder.communicate()


def test_no_sample_waits_for_a_flood_of_files(settings: Settings, until: Callable[..., None]) -> None:
    leases = Path(settings.lease_dir or "")
    for number in range(20_000):
        os.close(os.open(leases / f"lease-{number:08x}", os.O_CREAT | os.O_WRONLY, 0o644))
    reading = LeaseReading(settings)
    begun = time.thread_time()
    reading.news()
    assert time.thread_time() - begun < 0.1  # what this thread did itself
    until(lambda: reading.news() is not None, "an answer in spite of it")
    assert reading.known == ()
    (leases / "lease-ffffffff").touch()
    assert reading.news() is None  # it is a while before all that is looked at again


def test_where_leases_cannot_be_read_nothing_is_known(
    own_machine: Path, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    (own_machine / "link").symlink_to(own_machine / "leases")
    monkeypatch.setenv("GPULAB_LEASE_DIR", str(own_machine / "link"))
    reading = LeaseReading(config.load())
    for _ in range(3):
        assert reading.news() is None
    assert reading.known is None
