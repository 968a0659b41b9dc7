"""`%%gpu` in a real JupyterLab: a cell that keeps the interpreter lock, and its report, light and dark."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from gpulab import config
from gpulab.hardware import record
from gpulab.telemetry import sampler

from .conftest import Place, Server, serving, wait_until

pytestmark = pytest.mark.browser

_CELL = """%%gpu report
import ctypes
ctypes.PyDLL(None).usleep(5_000_000)  # keeps the interpreter lock for 5 s
"done\""""
_WORK = {
    "profile": "h100",
    "utilization": {"wave": {"low": 72, "high": 96, "period": 4}},
    "memory_utilization": 45,
    "power": {"wave": {"low": 420, "high": 640, "period": 4}},
    "memory_used": {"steps": [[0, "6GiB"], [2, "31GiB"], [5, "31GiB"]], "repeat": True},
    "throttle": {"steps": [[0, []], [3, ["sw_power_cap"]], [5, []]], "repeat": True},
    "pcie_rx": 2.1e9,
    "pcie_tx": 0.3e9,
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("machine") / "machine.json"
    path.write_text(json.dumps({"devices": [{"profile": "h100"}]}))
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, machine: Path) -> Iterator[Server]:
    place = Place(tmp_path_factory.mktemp("report"), GPULAB_SIMULATE=str(machine))
    put(place, "notification", {"fetchNews": "false", "checkForUpdates": False})
    place.put_notebook("report", [_CELL])
    yield from serving(place, "lab", "--", "--no-browser", "--port=0", "--LabApp.expose_app_in_browser=True")
    pid = sampler.running_pid(config.load(place.environ))
    if pid is not None:
        os.kill(pid, signal.SIGTERM)


def put(place: Place, name: str, values: dict[str, Any]) -> None:
    """Settings of JupyterLab's own."""
    directory = place.root / "settings" / "@jupyterlab" / "apputils-extension"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.jupyterlab-settings").write_text(json.dumps(values))


@pytest.fixture
def page(server: Server, browser: Browser) -> Iterator[Page]:
    """The notebook, its kernel ready."""
    context = browser.new_context(viewport={"width": 1280, "height": 660})
    page = context.new_page()
    page.goto(server.address("lab/tree/report.ipynb?reset"))
    expect(page.locator("#jp-main-statusbar")).to_contain_text("Python 3 (GPU) | Idle", timeout=60_000)
    yield page
    context.close()


def work(server: Server, machine: Path) -> None:
    """From now on the kernel computes on the GPU."""
    wait_until(lambda: len(server.place.leases()) == 1)
    (lease,) = server.place.leases()
    process = {"gpu": 0, "pid": lease["pid"], "bound": True, "memory": "4GiB", "gpu_percent": 80}
    content: dict[str, Any] = {"epoch": time.time(), "devices": [_WORK], "processes": [process]}
    machine.with_suffix(".new").write_text(json.dumps(content))
    os.replace(machine.with_suffix(".new"), machine)
    settings = config.load(server.place.environ)

    def is_counted() -> bool:
        """A new machine's energy counter begins anew, and counts from its second sample on."""
        newest = record.latest(settings)
        return newest is not None and newest.time > content["epoch"] + 2.5

    wait_until(is_counted)


BRIGHTNESS = """element => {
  const mean = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number).reduce((a, b) => a + b) / 3;
  let back = element;
  while (getComputedStyle(back).backgroundColor.endsWith(", 0)")) back = back.parentElement;
  const style = getComputedStyle(element);
  const ink = element instanceof SVGElement ? style.fill : style.color;
  return [mean(ink), mean(getComputedStyle(back).backgroundColor)];
}"""
"""Of a text and of what it stands on, from 0 to 255."""


def test_the_report_on_a_cell_that_keeps_the_lock_is_complete_and_read_in_both_themes(
    page: Page, server: Server, machine: Path, pictures: Path
) -> None:
    work(server, machine)
    page.locator(".jp-CodeCell").first.click()
    page.keyboard.press("Shift+Enter")
    outputs = page.locator(".jp-CodeCell").first.locator(".jp-OutputArea-output")
    report = outputs.filter(has_text="GPU report")
    expect(report).to_be_visible(timeout=30_000)
    expect(outputs.filter(has_text="'done'")).to_be_visible()
    text = report.inner_text()
    got, due = (int(word) for word in text.split(" samples")[0].rpartition("· ")[2].split(" of "))
    assert due >= 25
    assert got >= 0.95 * due
    for words in ("simulated", "at most 4.0 GiB", "by the GPU's counter", "power cap", "2.10 GB/s"):
        assert words in text, text
    assert report.locator("script").count() == 0
    assert report.evaluate("e => e.scrollWidth <= e.clientWidth + 1")
    light, dark = (shown_in(page, report, theme, pictures) for theme in ("Light", "Dark"))
    assert light > 200  # it stands on the page itself, not on a colour of its own
    assert dark < 60


def shown_in(page: Page, report: Locator, theme: str, pictures: Path) -> float:
    """How bright the paper is, after a look whether all can be read on it."""
    change = "theme => jupyterapp.commands.execute('apputils:change-theme', {theme})"
    page.evaluate(change, f"JupyterLab {theme}")
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", str(theme == "Light").lower())
    expect(page.locator("#jupyterlab-splash")).to_have_count(0)
    expect(report.locator("svg")).to_be_visible()
    papers = []
    for words in ("strong", "td", "svg text"):
        ink, paper = report.locator(words).first.evaluate(BRIGHTNESS)
        assert abs(ink - paper) > 90, (theme, words, ink, paper)
        papers.append(paper)
    page.screenshot(path=pictures / f"cell-report-{theme.lower()}.png")
    return float(papers[0])
