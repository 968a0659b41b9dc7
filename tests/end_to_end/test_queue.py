"""A full machine as two data scientists see it: two real notebooks in the queue, in a real JupyterLab."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from .conftest import Place, Server, serving, wait_until

pytestmark = pytest.mark.browser

MACHINE = "2xh100"
CELLS = {
    "first": ["print('data loaded')", "%gpu wait", "%gpu"],
    "second": ["print('data loaded')", "%gpu wait", "import os; os.environ['CUDA_VISIBLE_DEVICES']"],
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """JupyterLab on two simulated GPUs, where a full machine means to queue, in the browser's colours."""
    place = Place(tmp_path_factory.mktemp("queue"))
    place.environ["GPULAB_SIMULATE"] = MACHINE
    for name, cells in CELLS.items():
        place.put_notebook(name, cells)
    settings = {
        "notification": {"fetchNews": "false", "checkForUpdates": False},
        "themes": {"adaptive-theme": True},
    }
    for name, content in settings.items():
        path = place.root / "settings" / "@jupyterlab" / "apputils-extension" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    yield from serving(place, "lab", "--simulate", MACHINE, "--", "--no-browser", "--port=0")


def ask(lab: Server, method: str, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        lab.url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"token {lab.token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or "null")


@pytest.fixture(scope="module")
def holders(lab: Server) -> list[str]:
    """The ids of two notebooks' sessions that have both GPUs."""
    started = [
        ask(
            lab,
            "POST",
            "api/sessions",
            {"path": name, "name": name, "type": "notebook", "kernel": {"name": "gpulab"}},
        )["id"]
        for name in ("train.ipynb", "embeddings.ipynb")
    ]
    wait_until(lambda: len(lab.place.leases()) == 2)
    return started


def opened(browser: Browser, lab: Server, name: str, scheme: str) -> Page:
    """A notebook, its kernel ready."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    context.set_default_timeout(30_000)
    page = context.new_page()
    page.goto(lab.address(f"lab/tree/{name}.ipynb?reset"))
    expect(page.locator("#jp-main-statusbar")).to_contain_text("Python 3 (GPU) | Idle", timeout=60_000)
    return page


def run(page: Page, cell: int) -> Locator:
    """Run a cell; what it shows."""
    editor = page.locator(".jp-CodeCell").nth(cell)
    editor.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    return editor.locator(".jp-OutputArea")


def test_two_waiting_notebooks_show_their_places_and_get_their_gpus_without_a_restart(
    lab: Server, holders: list[str], browser: Browser, pictures: Path
) -> None:
    first = opened(browser, lab, "first", "light")
    second = opened(browser, lab, "second", "dark")
    try:
        expect(run(first, 0)).to_contain_text(
            re.compile("waits for 1 GPU: place 1 of 2.*data loaded", re.DOTALL)
        )
        expect(run(second, 0)).to_contain_text("waits for 1 GPU: place 2 of 2")

        waits = run(first, 1)
        expect(waits).to_contain_text("This kernel waits for 1 GPU: place 1 of 2, for ")
        expect(waits.locator("table").nth(1)).to_contain_text("train.ipynb")
        expect(waits.locator("table").nth(1)).to_contain_text("embeddings.ipynb")
        dark = run(second, 1)
        expect(dark.locator("table").first).to_contain_text(re.compile("first.ipynb.*this kernel", re.DOTALL))
        first.wait_for_timeout(2500)  # so that the picture shows a wait, not its first instant
        first.screenshot(path=pictures / "queue-light.png")
        second.screenshot(path=pictures / "queue-dark.png")

        second.get_by_role("menuitem", name="Kernel", exact=True).click()
        second.get_by_role("menuitem", name=re.compile("^Interrupt Kernel")).click()
        expect(dark).to_contain_text("goes on without a GPU; its place is kept")
        expect(dark).to_contain_text("place 2 of 2 is kept")

        ask(lab, "DELETE", f"api/sessions/{holders[0]}")
        expect(waits).to_contain_text(
            re.compile(r"Waited .* for 1 GPU\..*H100 80GB HBM3 \(simulated\), GPU-.* is yours", re.DOTALL)
        )
        expect(run(first, 2)).to_contain_text("This kernel has GPU 0")
        expect(run(second, 0)).not_to_contain_text("place")

        # Nothing runs in the second notebook now: the news comes under the cell that ran last.
        ask(lab, "DELETE", f"api/sessions/{holders[1]}")
        expect(second.locator(".jp-CodeCell").nth(0)).to_contain_text("your turn has come: ")
        second.screenshot(path=pictures / "queue-turn-dark.png")
        mask = run(second, 2)
        expect(mask).to_contain_text(re.compile(r"is yours.*'GPU-", re.DOTALL))
        mine = {lease["gpus"][0] for lease in lab.place.leases()}
        assert len(mine) == 2
        for page in (first, second):
            expect(page.locator("[data-mime-type='application/vnd.jupyter.error']")).to_have_count(0)
    finally:
        first.context.close()
        second.context.close()
