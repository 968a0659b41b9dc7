"""`gpulab dashboard` as a team sees it: a real Voila page, on a simulated machine."""

from __future__ import annotations

import re
import signal
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from .conftest import Server, await_movement

pytestmark = pytest.mark.browser

HOLD = ("run", "--no-wait", "--", "sleep", "60")
RUN_CODE = """async ([kernel, code]) => {
  const base = location.origin.replace("http", "ws");
  const socket = new WebSocket(`${base}/api/kernels/${kernel}/channels?session_id=intruder`);
  const message = (type, content) => JSON.stringify({
    channel: "shell", buffers: [], parent_header: {}, metadata: {}, content,
    header: {msg_id: type, msg_type: type, session: "intruder", username: "", version: "5.3", date: ""},
  });
  return await new Promise((done, failed) => {
    socket.onerror = failed;
    socket.onopen = () => {
      socket.send(message("execute_request", {code, silent: false, allow_stdin: false}));
      socket.send(message("kernel_info_request", {}));
    };
    socket.onmessage = ({data}) => {
      if (typeof data === "string" && JSON.parse(data).msg_type === "kernel_info_reply") done(socket.close());
    };
  });
}"""


def look(context: BrowserContext, dashboard: Server) -> Page:
    """The page, once its widget is live."""
    page = context.new_page()
    page.goto(dashboard.address())
    expect(page.locator(".gl-live")).to_have_text("live", timeout=60_000)
    return page


def test_every_gpu_is_shown_live_with_the_host_and_nothing_comes_from_elsewhere(
    context: BrowserContext, dashboard: Server, pictures: Path
) -> None:
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page = look(context, dashboard)
    expect(page.locator("li.gl-row")).to_have_count(8)
    expect(page.locator(".gl-simulated")).to_be_visible()
    expect(page).to_have_title(re.compile("^GPUs on ."))
    expect(page.locator(".jp-InputArea, .jp-OutputPrompt, pre")).to_have_count(0)
    await_movement(page)
    page.screenshot(path=pictures / "dashboard-light.png")
    hosts = {urlsplit(url).hostname for url in asked if not url.startswith(("data:", "blob:"))}
    assert hosts == {urlsplit(dashboard.url).hostname}


def test_a_holder_appears_and_is_gone_after_it_was_killed(context: BrowserContext, dashboard: Server) -> None:
    """And it is the only one: the page's own kernel holds no GPU, though here GPU kernels are the default."""
    page = look(context, dashboard)
    leased = page.locator(".gl-use", has_text=re.compile("since|leased"))
    expect(leased).to_have_count(0)
    holder = dashboard.place.start(*HOLD)
    try:
        expect(leased).to_have_count(1)
        (lease,) = dashboard.place.leases()
        assert lease["pid"] == holder.pid
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    expect(leased).to_have_count(0)


def test_who_waits_is_listed_below_the_gpus_and_gone_once_served(
    context: BrowserContext, dashboard: Server, pictures: Path
) -> None:
    page = look(context, dashboard)
    expect(page.locator(".gl-queue")).to_be_hidden()
    holder = dashboard.place.start("run", "--gpus", "8", "--no-wait", "--", "sleep", "60")
    waiter = None
    try:
        expect(page.locator(".gl-use", has_text="since")).to_have_count(8)
        waiter = dashboard.place.start("run", "--memory", "8GiB", "--", "sleep", "60")
        expect(page.locator(".gl-queue-title")).to_have_text("Waiting: 1")
        expect(page.locator(".gl-queue-line")).to_contain_text("waits for 8.0 GiB of a GPU, since ")
        page.screenshot(path=pictures / "dashboard-waiting.png", full_page=True)
        holder.kill()
        expect(page.locator(".gl-queue")).to_be_hidden()
        expect(page.locator(".gl-use", has_text="8 GiB")).to_have_count(1)
    finally:
        for process in filter(None, (holder, waiter)):
            process.kill()
            process.wait()


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 390)])
def test_it_follows_the_viewers_colours_and_fits_a_laptop_and_a_phone(
    browser: Browser, dashboard: Server, pictures: Path, scheme: str, width: int
) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    try:
        page = look(context, dashboard)
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 3
        assert brightness < 60 if scheme == "dark" else brightness > 200
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.screenshot(path=pictures / f"dashboard-{scheme}-{width}.png", full_page=True)
    finally:
        context.close()


def test_a_viewer_can_look_and_neither_run_code_nor_start_kernels_nor_write(
    context: BrowserContext, dashboard: Server
) -> None:
    page = look(context, dashboard)
    kernels = page.evaluate("fetch('/api/kernels').then((reply) => reply.json())")
    mark = dashboard.place.root / "intruded"
    page.evaluate(RUN_CODE, [kernels[-1]["id"], f"open({str(mark)!r}, 'w')"])
    assert not mark.exists()
    refused = """([path, method]) => fetch(path, {
      method, body: "{}", headers: {"X-XSRFToken": document.cookie.match(/_xsrf=([^;]*)/)?.[1] ?? ""},
    }).then((reply) => reply.status)"""
    assert page.evaluate(refused, ["/api/kernels", "POST"]) == 403
    assert page.evaluate(refused, ["/api/contents/team.ipynb", "PUT"]) == 403
    assert page.evaluate(refused, [f"/api/kernels/{kernels[-1]['id']}", "DELETE"]) == 403
    assert page.evaluate(refused, ["/api/shutdown", "POST"]) == 403


def test_without_the_token_there_is_only_the_way_to_log_in(dashboard: Server) -> None:
    with urllib.request.urlopen(dashboard.url, timeout=10) as reply:
        assert urlsplit(reply.url).path == "/login"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(dashboard.url + "api/kernels", timeout=10)


@pytest.mark.parametrize("path", ["voila/files/team.ipynb", "static//etc/passwd", "voila/static//etc/passwd"])
def test_even_with_the_token_no_file_of_the_machine_is_served(dashboard: Server, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match=r"40[34]"):
        urllib.request.urlopen(dashboard.address(path), timeout=10)
