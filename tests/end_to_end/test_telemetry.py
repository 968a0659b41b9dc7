"""The monitor in a real JupyterLab while a GPU, the sampler and the administrator have a bad day."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from gpulab import config
from gpulab.config import Settings
from gpulab.hardware import record
from gpulab.telemetry import sampler, series

from .conftest import Place, Server, serving, wait_until

pytestmark = pytest.mark.browser

_WAVE = {"wave": {"low": 5, "high": 95, "period": 12}}
_POWER = {"wave": {"low": 80, "high": 600, "period": 7}}
_MACHINE = {"devices": [{"profile": "h100", "count": 3, "utilization": _WAVE, "power": _POWER}]}
_HANG = [{"call": "nvmlDeviceGet*", "gpu": 1, "hang": True}]
_HOLDS_THE_LOCK = """
import re, time
text, end = "a" * 24, time.monotonic() + 4
while time.monotonic() < end:
    re.match("(a+)+b", text)  # the interpreter lock is not let go of in there
"locked no more"
"""
_SHOWN_SECONDS = 8_000
"""Within 5 s in the record; the page has the rest for its way to the browser on a busy machine."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("machine") / "machine.json"
    path.write_text(json.dumps(_MACHINE))
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, machine: Path) -> Iterator[Server]:
    place = Place(tmp_path_factory.mktemp("telemetry"), GPULAB_SIMULATE=str(machine))
    quiet = place.root / "settings" / "@jupyterlab" / "apputils-extension"
    quiet.mkdir(parents=True)
    options = {"fetchNews": "false", "checkForUpdates": False}
    (quiet / "notification.jupyterlab-settings").write_text(json.dumps(options))
    cells = ["import gpulab\ngpulab.monitor(devices='all')", _HOLDS_THE_LOCK]
    place.put_notebook("watch", cells)
    yield from serving(place, "lab", "--", "--no-browser", "--port=0")
    pid = sampler.running_pid(config.load(place.environ))
    if pid is not None:
        os.kill(pid, signal.SIGTERM)


@pytest.fixture(scope="module")
def settings(server: Server) -> Settings:
    return config.load(server.place.environ)


@pytest.fixture(scope="module")
def page(server: Server, browser: Browser) -> Iterator[Page]:
    """The monitor of all three GPUs, live."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(server.address("lab/tree/watch.ipynb?reset"))
    expect(page.locator("#jp-main-statusbar")).to_contain_text("Python 3 (GPU) | Idle", timeout=60_000)
    page.locator(".jp-CodeCell").first.click()
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".gl-live")).to_have_text("live", timeout=30_000)
    expect(page.locator("li.gl-row")).to_have_count(3)
    yield page
    context.close()


def figure(page: Page, row: int) -> Any:
    return page.locator("li.gl-row").nth(row).locator(".gl-power .gl-number")


def moves(page: Page, *rows: int, within: float = 10.0) -> None:
    """Until the power of each of these rows is another figure than now."""
    before = {row: figure(page, row).inner_text() for row in rows}
    wait_until(lambda: all(figure(page, row).inner_text() != before[row] for row in rows), within)


def replace(path: Path, content: dict[str, Any]) -> None:
    """As a whole: a reader never sees half of a scenario."""
    path.with_suffix(".new").write_text(json.dumps(content))
    os.replace(path.with_suffix(".new"), path)


def test_a_gpu_that_hangs_is_shown_as_such_the_others_go_on_and_it_comes_back(
    page: Page, machine: Path, pictures: Path
) -> None:
    moves(page, 0, 1, 2)
    replace(machine, {**_MACHINE, "faults": _HANG})
    try:
        broken = page.locator("li.gl-broken")
        expect(broken).to_have_count(1, timeout=_SHOWN_SECONDS)
        expect(broken.locator(".gl-index")).to_have_text("1")
        expect(broken.locator(".gl-power .gl-number")).to_have_text("n/a")
        moves(page, 0, 2)
        expect(page.locator(".gl-live")).to_have_text("live")
        page.screenshot(path=pictures / "telemetry-hang.png")
    finally:
        replace(machine, _MACHINE)
    expect(page.locator("li.gl-broken")).to_have_count(0, timeout=15_000)
    expect(figure(page, 1)).not_to_have_text("n/a")
    moves(page, 0, 1, 2)


def test_after_the_sampler_was_killed_the_figures_move_on(page: Page, settings: Settings) -> None:
    killed = sampler.running_pid(settings)
    assert killed is not None
    last = record.latest(settings)
    assert last is not None
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: sampler.running_pid(settings) not in (None, killed))
    wait_until(lambda: (now := record.latest(settings)) is not None and now.time > last.time)
    first = record.latest(settings)
    assert first is not None
    assert first.time - last.time < 5.0  # at most three samples, and this one may not be the first
    moves(page, 0, 1, 2)
    expect(page.locator(".gl-live")).to_have_text("live")


def test_a_pause_is_told_in_its_own_sentence_and_ends(page: Page, server: Server, pictures: Path) -> None:
    server.place.gpulab("pause")
    try:
        expect(page.locator(".gl-live")).to_have_text("paused", timeout=_SHOWN_SECONDS)
        expect(page.locator(".gl-notice")).to_contain_text("gpulab resume")
        page.screenshot(path=pictures / "telemetry-paused.png")
    finally:
        server.place.gpulab("resume")
    expect(page.locator(".gl-live")).to_have_text("live", timeout=_SHOWN_SECONDS)
    expect(page.locator("li.gl-row")).to_have_count(3)
    moves(page, 0, 1, 2)


def test_a_cell_that_holds_the_interpreter_lock_leaves_no_gap_once_it_ends(
    page: Page, settings: Settings
) -> None:
    began = time.time()
    page.locator(".jp-CodeCell").nth(1).click()
    page.keyboard.press("Shift+Enter")
    expect(page.get_by_text("locked no more", exact=False).last).to_be_visible(timeout=20_000)
    wait_until(_output_of_second_cell(page), 20)
    moves(page, 0, 1, 2)
    held = series.samples(settings, began, time.time())
    assert len(held) == 3
    for samples in held.values():
        gaps = [after.time - before.time for before, after in itertools.pairwise(samples)]
        assert max(gaps) < 1.9, gaps


def _output_of_second_cell(page: Page) -> Callable[[], bool]:
    return lambda: page.locator(".jp-CodeCell").nth(1).locator(".jp-OutputArea-output").count() > 0
