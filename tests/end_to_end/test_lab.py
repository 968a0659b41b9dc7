"""`gpulab lab` as a data scientist sees it: the start notebook in a real JupyterLab."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from .conftest import ROOT, Server, await_movement, wait_until

pytestmark = pytest.mark.browser

START = "lab/tree/notebooks/00_start_here.ipynb?reset"
ALL_DONE = """() => {
  const prompts = [...document.querySelectorAll(".jp-CodeCell .jp-InputPrompt")];
  return prompts.length > 5 && prompts.every((prompt) => /^\\[\\d+\\]:$/.test(prompt.textContent.trim()));
}"""
HOLD_ALL = "import sys, gpulab; gpulab.acquire(8); print('held', flush=True); sys.stdin.read()"


def menu(page: Page, name: str, entry: str) -> None:
    page.get_by_role("menuitem", name=name, exact=True).click()
    page.get_by_role("menuitem", name=entry).click()


def ready(page: Page) -> None:
    expect(page.locator("#jp-main-statusbar")).to_contain_text("Python 3 (GPU) | Idle", timeout=60_000)


@pytest.fixture(scope="module")
def notebook(lab: Server, browser: Browser) -> Iterator[Page]:
    """The start notebook, all of its cells run."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(lab.address(START))
    ready(page)
    menu(page, "Run", re.compile("^Run All Cells"))
    # While it runs: at its end the notebook gives the GPU back, and the mark goes with it
    expect(page.locator(".gpulab .gl-mine")).to_have_count(1, timeout=60_000)
    page.wait_for_function(ALL_DONE, timeout=90_000)
    yield page
    context.close()


def test_the_start_notebook_runs_to_its_end_on_the_gpu_kernel_without_an_error(notebook: Page) -> None:
    ready(notebook)
    outputs = notebook.locator(".jp-OutputArea-output")
    expect(outputs.first).to_contain_text("H100 80GB HBM3 (simulated), GPU-")
    expect(notebook.locator("[data-mime-type='application/vnd.jupyter.stderr']")).to_have_count(0)
    expect(notebook.locator("[data-mime-type='application/vnd.jupyter.error']")).to_have_count(0)


def test_the_monitor_shows_all_gpus_marks_this_kernels_and_moves(notebook: Page, pictures: Path) -> None:
    monitor = notebook.locator(".gpulab")
    monitor.scroll_into_view_if_needed()
    expect(monitor.locator("li.gl-row")).to_have_count(8)
    expect(monitor.locator(".gl-simulated")).to_be_visible()
    expect(monitor.locator(".gl-live")).to_have_text("live")
    await_movement(notebook)
    notebook.screenshot(path=pictures / "lab-light.png")


def test_the_dbscan_plot_is_there_and_no_speedup_is_claimed_on_a_simulated_gpu(notebook: Page) -> None:
    plot = notebook.locator(".jp-OutputArea-output img[src^='data:image/png']")
    plot.scroll_into_view_if_needed()
    expect(plot).to_have_count(1)
    assert plot.evaluate("image => image.naturalWidth") > 400
    assert "simulated GPUs cannot compute" in notebook.locator(".jp-Notebook").inner_text()


def restart(page: Page) -> None:
    menu(page, "Kernel", re.compile("^Restart Kernel…"))
    page.get_by_role("dialog").get_by_role("button", name="Confirm Kernel Restart").click()
    expect(page.locator("#jp-main-statusbar")).to_contain_text(re.compile("Restarting|Connecting|Unknown"))
    ready(page)


def test_the_notebook_ends_with_its_gpu_given_back_and_a_restart_takes_the_same_one(
    notebook: Page, lab: Server
) -> None:
    assert lab.place.leases() == []
    restart(notebook)
    (lease,) = lab.place.leases()
    text = notebook.locator(".jp-Notebook").inner_text()
    assert text.count(lease["gpus"][0]) >= 2  # what %gpu and `gpulab leases` said while it was held


def test_a_restart_keeps_the_lease_and_a_shutdown_gives_it_back(notebook: Page, lab: Server) -> None:
    (before,) = lab.place.leases()
    restart(notebook)
    (after,) = lab.place.leases()
    assert (after["gpus"], after["id"]) == (before["gpus"], before["id"])
    assert after["pid"] != before["pid"]
    menu(notebook, "Kernel", re.compile("^Shut Down Kernel"))
    wait_until(lambda: lab.place.leases() == [])


def test_where_every_gpu_is_taken_jupyterlab_says_so_in_our_words(
    lab: Server, browser: Browser, pictures: Path
) -> None:
    path = lab.place.work / "notebooks" / "full.ipynb"
    path.write_bytes((ROOT / "notebooks" / "00_start_here.ipynb").read_bytes())
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_ALL],
        env=lab.place.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="dark")
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        page = context.new_page()
        page.goto(lab.address("lab/tree/notebooks/full.ipynb?reset"))
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Error Starting Kernel", timeout=60_000)
        expect(dialog).to_contain_text(re.compile(r"[Nn]o (free )?GPU|GPUs? .*(taken|leased|free)"))
        expect(dialog).not_to_contain_text("Traceback")
        page.screenshot(path=pictures / "lab-full.png")
    finally:
        context.close()
        holder.communicate("")
