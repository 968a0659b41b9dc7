"""The monitor as people see it in JupyterLab: one page, each test goes on where the last one was."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from gpulab.telemetry import sampler

from .lab import HOSTILE, TOKEN, Lab

pytestmark = pytest.mark.browser

CELLS = [
    "import gpulab\ngpulab.monitor()",
    "import time\ntime.sleep(3)\nprint('slept')",
    "end = time.monotonic() + 3\nwhile time.monotonic() < end:\n    pass\nprint('looped')",
    "lease = gpulab.acquire(memory='20GiB')\nprint('acquired')",
    "lease.release()\nprint('released')",
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"), CELLS)
    yield lab
    lab.close()
    pid = sampler.running_pid(lab.settings)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def requests() -> list[str]:
    return []


@pytest.fixture(scope="module")
def page(lab: Lab, browser: Browser, requests: list[str]) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(60_000)
    expect.set_options(timeout=20_000)
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"{lab.url}lab/tree/monitor.ipynb?token={TOKEN}&reset")
    page.wait_for_function("window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel")
    run(page, 0)
    yield page
    page.close()


def run(page: Page, cell: int) -> None:
    """Start a cell, without waiting for its end."""
    page.evaluate(
        """index => {
            const panel = window.jupyterapp.shell.currentWidget;
            panel.content.activeCellIndex = index;
            void window.jupyterapp.commands.execute("notebook:run-cell");
        }""",
        cell,
    )


def rows(page: Page) -> list[str]:
    return page.locator(".gpulab .gl-row").all_inner_texts()


def utilizations_while(page: Page, finished: str) -> list[str]:
    """The figures of the first GPU, as they change until a cell has printed its last word."""
    seen: list[str] = []
    deadline = time.monotonic() + 60
    while page.locator(f".jp-OutputArea-output pre:text-is('{finished}')").count() == 0:
        assert time.monotonic() < deadline
        figure = page.locator(".gl-row .gl-gpu .gl-number").first.inner_text()
        if not seen or figure != seen[-1]:
            seen.append(figure)
        page.wait_for_timeout(100)
    return seen


def ink(page: Page, chart: int) -> int:
    """How many pixels a chart has drawn."""
    return int(
        page.locator(".gl-plot canvas")
        .nth(chart)
        .evaluate(
            """canvas => {
                const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
                let count = 0;
                for (let i = 3; i < data.length; i += 4) if (data[i] > 100) count += 1;
                return count;
            }"""
        )
    )


def test_eight_gpus_appear_with_their_figures_and_are_labelled_as_simulated(page: Page) -> None:
    expect(page.locator(".gpulab .gl-row")).to_have_count(8)
    expect(page.locator(".gl-simulated")).to_be_visible()
    expect(page.locator(".gl-live")).to_have_text("live")
    assert re.search(
        r"H100 80GB HBM3.*free.*\d+ %.*2\.0 / 79\.6 GiB.*\d+ W.*\d+ °C", rows(page)[0].replace("\n", " ")
    )


def test_an_unknown_figure_is_na_and_a_hostile_name_is_only_text(page: Page) -> None:
    assert HOSTILE in rows(page)[7]
    expect(page.locator(".gl-row").nth(7).locator(".gl-power .gl-number")).to_have_text("n/a")
    expect(page.locator(".gpulab img")).to_have_count(0)
    assert page.title() != "owned"


@pytest.mark.parametrize(("cell", "word"), [(1, "slept"), (2, "looped")])
def test_it_moves_while_a_cell_keeps_the_kernel_busy(page: Page, cell: int, word: str) -> None:
    run(page, cell)
    assert len(utilizations_while(page, word)) >= 3


def test_lines_grow(page: Page) -> None:
    before = [ink(page, chart) for chart in range(2)]
    assert min(before) > 0
    deadline = time.monotonic() + 15
    while not all(ink(page, chart) > before[chart] for chart in range(2)):
        assert time.monotonic() < deadline
        page.wait_for_timeout(200)


def test_charts_have_names_with_the_current_value_and_the_table_has_every_figure(page: Page) -> None:
    charts = page.get_by_role("img", name=re.compile(r"^Utilization of GPU 0, last minutes; now \d+ %$"))
    expect(charts).to_have_count(1)
    button = page.get_by_role("button", name="Show table")
    button.focus()
    page.keyboard.press("Enter")
    table = page.get_by_role("table", name="What every shown GPU is doing now")
    expect(table.get_by_role("row")).to_have_count(9)
    expect(table.get_by_role("rowheader", name="GPU 0")).to_be_visible()
    page.get_by_role("button", name="Hide table").click()
    expect(table).to_be_hidden()


def test_the_own_gpu_is_marked_with_its_share_and_the_others_are_a_click_away(
    page: Page, pictures: Path
) -> None:
    run(page, 3)
    expect(page.locator(".gl-yours:visible")).to_have_count(1)
    expect(page.locator(".gl-row")).to_have_count(1)
    expect(page.locator(".gl-heading")).to_have_text("1 of 8 GPUs")
    expect(page.locator(".gl-share")).to_have_text("your share 20 GiB")
    page.screenshot(path=pictures / "own.png")
    page.get_by_role("button", name="Show all 8").click()
    expect(page.locator(".gl-row")).to_have_count(8)
    expect(page.locator(".gl-row.gl-mine")).to_have_count(1)
    expect(page.locator(".gl-mine .gl-use")).to_have_text(re.compile(r"^share 20 GiB since \d\d:\d\d$"))
    page.screenshot(path=pictures / "light.png")


def test_it_is_readable_in_the_dark(page: Page, pictures: Path) -> None:
    page.evaluate("window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    assert contrast(page, ".gl-name") > 7
    assert contrast(page, ".gl-free") > 4.5
    page.wait_for_timeout(1200)  # until the charts have been drawn once more
    page.screenshot(path=pictures / "dark.png")


def contrast(page: Page, selector: str) -> float:
    """Of an element's text on the notebook's paper, as WCAG reckons it."""
    return float(
        page.locator(selector).first.evaluate(
            """element => {
                const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
                const paper = getComputedStyle(document.body).getPropertyValue("--jp-layout-color0");
                const light = colours => {
                    for (const colour of colours) {
                        canvas.fillStyle = colour;
                        canvas.fillRect(0, 0, 1, 1);
                    }
                    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)
                        .map(x => x / 255).map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
                    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
                };
                const [a, b] = [light([paper]), light([paper, getComputedStyle(element).color])];
                return Math.max(a, b) / Math.min(a, b);
            }"""
        )
    )


def test_a_sampler_that_stops_is_told_in_seconds_and_its_return_too(page: Page, lab: Lab) -> None:
    pid = sampler.running_pid(lab.settings)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # it keeps the lock, so nobody can start another one
    try:
        expect(page.locator(".gl-live")).to_have_text("no data for 4 s")
        expect(page.locator(".gl-live")).to_have_text("no data for 5 s")
        expect(page.locator(".gpulab [aria-live]")).to_have_text("No new data from the GPUs.")
    finally:
        os.kill(pid, signal.SIGCONT)
    expect(page.locator(".gl-live")).to_have_text("live")


def test_given_up_the_gpu_is_not_marked_any_more(page: Page) -> None:
    run(page, 4)
    expect(page.locator(".gl-yours:visible")).to_have_count(0)
    page.get_by_role("button", name="Only this kernel's").click()
    expect(page.locator(".gl-notice")).to_have_text("This kernel sees no GPU; it runs on the CPU.")


def test_nothing_was_asked_of_another_host(page: Page, lab: Lab, requests: list[str]) -> None:
    own = (lab.url, "data:", "blob:")
    assert requests
    assert [url for url in requests if not url.startswith(own)] == []


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go, to be looked at."""
    return tmp_path_factory.mktemp("pictures")
