"""The bundle in a bare page with a model that is ours: no kernel, no server, and a clock that tests turn."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import gpulab
from gpulab.widgets.window import Row, pack

pytestmark = pytest.mark.browser

STATIC = Path(gpulab.__file__).parent / "static"
NOON = 1_800_000_000
GIB = 2**30
MACHINE = {"mode": "visible", "host": "", "simulated": False, "trouble": "", "notice": ""}

_MODEL = """
async ({esm, traits, window: packed}) => {
    const bytes = text => new DataView(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
    const listeners = {};
    globalThis.sent = [];
    globalThis.traits = {...traits, window: packed ? bytes(packed) : undefined};
    globalThis.model = {
        get: name => globalThis.traits[name],
        on: (name, listener) => { listeners[name] = listener; },
        off: name => { delete listeners[name]; },
        send: message => globalThis.sent.push(message),
    };
    globalThis.change = values => {
        Object.assign(globalThis.traits, values);
        for (const name in values) listeners[`change:${name}`]?.();
    };
    globalThis.stream = packed => globalThis.change({window: bytes(packed)});
    globalThis.message = (content, packed) => listeners["msg:custom"]?.(content, [bytes(packed)]);
    globalThis.listening = () => Object.keys(listeners).length;
    const url = URL.createObjectURL(new Blob([esm], {type: "text/javascript"}));
    const module = await import(url);
    const el = document.getElementById("root");
    globalThis.cleanUp = module.default.render({model: globalThis.model, el});
}
"""


@pytest.fixture(scope="module")
def browser_page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    page.clock.install(time=NOON)
    yield page
    page.close()


@pytest.fixture
def page(browser_page: Page) -> Iterator[Page]:
    errors: list[str] = []
    browser_page.on("pageerror", lambda error: errors.append(str(error)))
    style = (STATIC / "monitor.css").read_text()
    browser_page.set_content(f"<style>{style}</style><div id=root style='width: 900px'></div>")
    browser_page.clock.pause_at(browser_page.evaluate("Date.now()") / 1000 + 1)
    yield browser_page
    assert errors == []


def device(index: int, **changes: Any) -> dict[str, Any]:
    entry = {
        "key": f"GPU-{index}",
        "label": str(index),
        "uuid": f"GPU-{index}",
        "name": "NVIDIA Tesla T4",
        "kind": "gpu",
        "state": "ok",
        "message": "",
        "visible": True,
        "mine": False,
        "share_bytes": None,
        "memory_total_bytes": 16 * GIB,
        "power_limit_watts": 70.0,
        "use": "free",
        "users": [],
        "holders": [],
    }
    return {**entry, **changes}


def holder(who: str, **changes: Any) -> dict[str, Any]:
    return {"who": who, "notebook": None, "since": None, "share_bytes": None, "mine": False, **changes}


def packed(times: list[float], *figures: tuple[float, ...], layout: int = 1) -> str:
    flat = tuple(x for device in figures for x in device)
    rows = [Row(time, flat) for time in times]
    return base64.b64encode(pack(rows, layout=layout, devices=len(figures))).decode()


def show(
    page: Page, devices: list[dict[str, Any]], machine: dict[str, Any] = MACHINE, window: str = ""
) -> None:
    traits = {"machine": machine, "devices": devices, "text": "", "span": 180, "window_age": 0.2}
    esm = (STATIC / "monitor.js").read_text()
    page.evaluate(_MODEL, {"esm": esm, "traits": traits, "window": window})


def stream(page: Page, window: str) -> None:
    """A window that comes live, as the kernel answers a heartbeat."""
    page.evaluate("packed => stream(packed)", window)


BUSY = (87.4, 4096.0, 61.2, 64.0)


def test_figures_of_the_newest_sample_are_shown_with_their_units(page: Page) -> None:
    show(page, [device(0)], window=packed([NOON, NOON + 1], BUSY))
    stream(page, packed([NOON, NOON + 1], BUSY))
    expect(page.locator(".gl-gpu.gl-figure")).to_have_text("Utilization87 %")
    expect(page.locator(".gl-memory.gl-figure")).to_have_text("Memory4.0 / 16 GiB")
    expect(page.locator(".gl-power")).to_have_text("Power61 W")
    expect(page.locator(".gl-temperature")).to_have_text("Temp.64 °C")
    expect(page.locator(".gl-live")).to_have_text("live")


def test_messages_append_and_those_of_another_layout_wait_for_their_window(page: Page) -> None:
    show(page, [device(0)])
    stream(page, packed([NOON], BUSY))
    page.evaluate("m => message({kind: 'samples', age: 0.1}, m)", packed([NOON + 1], (12.0, 0, 0, 0)))
    expect(page.locator(".gl-gpu .gl-number")).to_have_text("12")
    page.evaluate(
        "m => message({kind: 'samples', age: 0.1}, m)", packed([NOON + 2], (99.0, 0, 0, 0), layout=2)
    )
    expect(page.locator(".gl-gpu .gl-number")).to_have_text("12")
    stream(page, packed([NOON + 2], (99.0, 0, 0, 0), layout=2))
    expect(page.locator(".gl-gpu .gl-number")).to_have_text("99")


def test_without_new_samples_the_seconds_are_counted_in_the_browser(page: Page) -> None:
    show(page, [device(0)])
    stream(page, packed([NOON], BUSY))
    for seconds, text in (
        (3, "live"),
        (9, "no data for 12 s"),
        (1, "no data for 13 s"),
        (180, "no data for 3 min"),
    ):
        page.clock.run_for(seconds * 1000)
        expect(page.locator(".gl-live")).to_have_text(text)
    expect(page.locator(".gl-gpu .gl-number")).to_have_text("87")


def test_a_notebook_opened_without_its_kernel_shows_old_samples_as_old(page: Page) -> None:
    show(page, [device(0)], window=packed([NOON - 7200], BUSY))
    expect(page.locator(".gl-live")).not_to_have_text("live")
    page.clock.run_for(6_000)
    expect(page.locator(".gl-live")).to_have_text("no data for 2 h")


def test_before_anything_is_known_it_says_so(page: Page) -> None:
    show(page, [])
    expect(page.locator(".gl-notice")).to_have_text("Asking for the GPUs …")
    expect(page.locator(".gl-live")).to_have_text("connecting")
    page.clock.run_for(6_000)
    expect(page.locator(".gl-live")).to_have_text("no data yet")


def test_a_driver_that_is_off_is_a_sentence_in_the_place_of_charts(page: Page) -> None:
    show(page, [], machine={**MACHINE, "trouble": "The driver is not loaded; load it."})
    expect(page.locator(".gl-notice")).to_have_text("The driver is not loaded; load it.")
    expect(page.locator(".gl-row")).to_have_count(0)
    expect(page.locator(".gl-live")).to_have_text("no data")


def test_a_broken_gpu_shows_its_sentence_and_hides_no_other(page: Page) -> None:
    lost = device(1, state="lost", message="GPU 1 is lost; reboot.")
    show(page, [device(0), lost, device(2)])
    stream(page, packed([NOON], BUSY, (float("nan"),) * 4, BUSY))
    expect(page.locator(".gl-row .gl-gpu .gl-number")).to_have_text(["87", "n/a", "87"])
    expect(page.locator(".gl-broken .gl-use")).to_have_text("GPU 1 is lost; reboot.")


def test_the_pointer_reads_every_chart_at_the_same_instant(page: Page) -> None:
    show(page, [device(0), device(1)])
    stream(page, packed([NOON + second for second in range(180)], BUSY, (12.0, 1024.0, 30.0, 40.0)))
    plot = page.locator(".gl-row:nth-child(2) .gl-plot.gl-gpu")
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator(".gl-readout").nth(2)).to_have_text(re.compile(r"^12 %, 1:[23]\d ago$"))
    expect(page.locator(".gl-readout").nth(0)).to_have_text("87 %")
    expect(page.locator(".gl-readout").nth(1)).to_have_text("4.0 GiB")
    page.mouse.move(0, 0)
    expect(page.locator(".gl-readout").nth(2)).to_have_text("")


def test_holders_are_named_and_nothing_of_theirs_is_markup(page: Page) -> None:
    evil = "<img src=x onerror=alert(1)>"
    devices = [
        device(0, use="leased", holders=[holder("ada")]),
        device(1, use="leased", holders=[holder(evil, notebook=evil)]),
        device(2, use="leased", holders=[holder("ada"), holder("grace")]),
        device(3, use="busy", users=["linus"]),
        device(4, use="unknown"),
        device(5, name=evil, kind="mig", label="0.1"),
    ]
    show(page, devices)
    assert page.locator(".gl-use").all_inner_texts() == [
        "leased by ada",
        f"leased by {evil} · {evil}",
        "shared by ada · grace",
        "in use by linus, no lease",
        "use not known",
        "free",
    ]
    expect(page.locator("#root img")).to_have_count(0)


def test_a_holder_that_does_nothing_is_shown_as_idle_since_when(page: Page) -> None:
    idle = {"since": NOON - 86_400 * 3, "idle_since": NOON - 86_400}
    devices = [
        device(0, use="leased", holders=[holder("ada", **idle)]),
        device(1, use="leased", holders=[holder("ada"), holder("grace", **idle)]),
    ]
    show(page, devices)
    first, second = (" ".join(text.split()) for text in page.locator(".gl-use").all_inner_texts())
    assert re.fullmatch(r"leased by ada since .*\d\d:\d\d, idle since .*\d\d:\d\d", first)
    assert re.fullmatch(r"shared by ada · grace, idle since .*\d\d:\d\d", second)


def test_a_shared_gpu_says_who_has_how_much_and_the_rest_where_it_fits(page: Page) -> None:
    def share(who: str, size: int, notebook: str | None = None) -> dict[str, Any]:
        return holder(who, share_bytes=size * GIB, since=NOON - 86_400 * 3, notebook=notebook)

    devices = [
        device(0, use="leased", holders=[share("root", 8), share("root", 4)]),
        device(1, use="leased", holders=[share("root", 8, "a.ipynb"), share("ada", 4, "b.ipynb")]),
        device(2, use="leased", holders=[share("root", 8, "a.ipynb"), share("ada", 4), share("bob", 2)]),
        device(3, use="leased", mine=True, holders=[{**share("root", 8), "mine": True}, share("ada", 4)]),
    ]
    show(page, devices, machine={**MACHINE, "mode": "team"})
    when = r"[^,]*\d\d:\d\d"
    words = [" ".join(text.split()) for text in page.locator(".gl-use").all_inner_texts()]
    assert re.fullmatch(rf"root 8 GiB, {when} · root 4 GiB, {when}", words[0])
    assert re.fullmatch(rf"root 8 GiB, {when}, a\.ipynb ada 4 GiB, {when}, b\.ipynb", words[1])
    assert words[2] == "root 8 GiB · ada 4 GiB · bob 2 GiB"
    assert re.fullmatch(rf"root 8 GiB, {when} · ada 4 GiB, {when}", words[3])
    expect(page.locator(".gl-use").nth(2)).to_have_attribute(
        "title", re.compile(r"^root 8 GiB · a\.ipynb since .*\nada 4 GiB since .*\nbob 2 GiB since ")
    )
    expect(page.locator(".gl-table td:nth-child(3)").nth(1)).to_have_text(
        re.compile(r"^root 8 GiB · a\.ipynb since .*; ada 4 GiB · b\.ipynb since ")
    )


@pytest.mark.parametrize("share", [1, 8, 15])
def test_the_line_of_the_share_does_not_run_through_its_label(page: Page, share: int) -> None:
    own = holder("ada", share_bytes=share * GIB, mine=True)
    show(page, [device(0, use="leased", mine=True, share_bytes=share * GIB, holders=[own])])
    label, plot = page.locator(".gl-share").bounding_box(), page.locator(".gl-plot").nth(1).bounding_box()
    assert label is not None
    assert plot is not None
    line = plot["y"] + 4 + (plot["height"] - 8) * (1 - share / 16)  # the chart keeps 4 px free at both ends
    assert not label["y"] - 1 < line < label["y"] + label["height"] + 1
    assert plot["y"] <= label["y"] <= plot["y"] + plot["height"] - label["height"]


@pytest.mark.parametrize("width", [700, 420])
def test_where_the_columns_have_no_heads_every_figure_has_its_label(page: Page, width: int) -> None:
    show(page, [device(index) for index in range(3)])
    page.evaluate("width => { document.getElementById('root').style.width = `${width}px`; }", width)
    for title in ("Utilization", "Memory", "Power", "Temp."):
        expect(page.locator(".gl-row").first.get_by_text(title, exact=True)).to_be_visible()


def test_a_kernel_that_has_been_changed_takes_no_heartbeat_and_that_is_no_error(page: Page) -> None:
    show(page, [device(0)])
    stream(page, packed([NOON], BUSY))
    page.evaluate("void (model.send = () => { throw new Error('Cannot send'); })")
    page.clock.run_for(20_500)
    expect(page.locator(".gl-live")).to_have_text("no data for 20 s")  # and no error: see the fixture


def test_the_teams_view_names_the_holder_first_and_the_host(page: Page) -> None:
    machine = {**MACHINE, "mode": "team", "host": "gpu-server-1"}
    own = holder("ada", notebook="train.ipynb", since=NOON - 86_400 * 3, mine=True)
    show(page, [device(0, use="leased", mine=True, holders=[own]), device(1)], machine=machine)
    expect(page.locator(".gl-heading")).to_have_text("2 GPUs on gpu-server-1")
    expect(page.locator(".gl-use").first).to_have_text(
        re.compile(r"^ada · train\.ipynb · since .*\d\d:\d\d$")
    )


def test_a_page_in_view_sends_a_heartbeat_every_ten_seconds_and_a_hidden_one_none(page: Page) -> None:
    show(page, [device(0)])
    assert page.evaluate("sent") == [{"kind": "beat"}]
    page.clock.run_for(20_500)
    assert page.evaluate("sent.length") == 3
    seen = "Object.defineProperty(document, 'visibilityState', {value: '%s', configurable: true})"
    change = "; document.dispatchEvent(new Event('visibilitychange'))"
    page.evaluate(seen % "hidden" + change)
    page.clock.run_for(60_000)
    assert page.evaluate("sent.length") == 3
    page.evaluate(seen % "visible" + change)
    assert page.evaluate("sent.length") == 4


def test_a_view_that_is_taken_away_leaves_nothing_behind(page: Page) -> None:
    show(page, [device(0)])
    stream(page, packed([NOON], BUSY))
    page.evaluate("cleanUp()")
    assert page.evaluate("listening()") == 0
    assert page.evaluate("document.getElementById('root').childElementCount") == 0
    sent = page.evaluate("sent.length")
    page.clock.run_for(30_000)
    assert page.evaluate("sent.length") == sent


def test_eight_gpus_fit_the_width_of_a_notebook_and_of_a_phone(page: Page) -> None:
    show(page, [device(index) for index in range(8)])
    stream(page, packed([NOON], *[BUSY] * 8))
    for width in (1100, 820, 600, 380):
        page.evaluate("width => { document.getElementById('root').style.width = `${width}px`; }", width)
        deadline = time.monotonic() + 10
        while overflow(page) > 1:  # charts follow a moment after
            assert time.monotonic() < deadline, width


def overflow(page: Page) -> float:
    """Pixels by which anything in a row stands out on the right."""
    return float(
        page.evaluate(
            """() => {
                const right = document.getElementById("root").getBoundingClientRect().right;
                const all = [...document.querySelectorAll(".gl-row *")];
                const shown = all.filter(x => x.getClientRects().length);
                return Math.max(...shown.map(x => x.getBoundingClientRect().right)) - right;
            }"""
        )
    )


def test_a_pause_is_told_with_its_sentence_and_is_no_alarm(page: Page) -> None:
    sentence = "root has paused gpulab since 14:02; `gpulab resume` ends it."
    show(page, [], machine={**MACHINE, "state": "paused", "trouble": sentence})
    expect(page.locator(".gl-notice")).to_have_text(sentence)
    expect(page.locator(".gl-live")).to_have_text("paused")
    expect(page.locator(".gl-live")).to_have_attribute("data-kind", "waiting")


def test_what_holds_a_gpu_back_is_a_small_badge_and_only_where_it_is_known(page: Page) -> None:
    why = "It would run faster, but draws all the power that it may."
    capped = device(0, sm_clock_mhz=1335.0, brake=["power cap", why])
    show(page, [capped, device(1, sm_clock_mhz=1980.0, brake=None), device(2)])
    stream(page, packed([NOON], BUSY, BUSY, BUSY))
    badge = page.locator(".gl-brake:visible")
    expect(badge).to_have_text("power cap")
    expect(badge).to_have_attribute("title", why)
    expect(page.locator(".gl-gpu.gl-figure").first).to_have_attribute("title", "SM clock 1335 MHz")
    page.get_by_role("button", name="Show table").click()
    expect(page.locator(".gl-table td:nth-child(8)")).to_have_text(["1335 MHz", "1980 MHz", "n/a"])
    expect(page.locator(".gl-table td:nth-child(9)")).to_have_text(["power cap", "", ""])


def test_a_gpu_that_hangs_keeps_its_row_and_chart_until_it_answers_again(page: Page) -> None:
    show(page, [device(0), device(1)])
    stream(page, packed([NOON], BUSY, BUSY))
    page.evaluate("void (document.querySelectorAll('.gl-row')[1].dataset.first = 'yes')")
    hung = device(1, state="unresponsive", message="GPU 1 does not answer.", memory_total_bytes=None)
    page.evaluate("devices => change({devices})", [device(0), hung])
    page.evaluate(
        "m => message({kind: 'samples', age: 0.1}, m)", packed([NOON + 1], BUSY, (float("nan"),) * 4)
    )
    expect(page.locator(".gl-broken .gl-use")).to_have_text("GPU 1 does not answer.")
    expect(page.locator(".gl-row .gl-gpu .gl-number")).to_have_text(["87", "n/a"])
    page.evaluate("devices => change({devices})", [device(0), device(1)])
    page.evaluate("m => message({kind: 'samples', age: 0.1}, m)", packed([NOON + 2], BUSY, BUSY))
    expect(page.locator(".gl-row .gl-gpu .gl-number")).to_have_text(["87", "87"])
    expect(page.locator(".gl-row[data-first=yes]")).to_have_count(1)


def test_a_missing_sample_breaks_the_line_and_a_late_one_does_not(page: Page) -> None:
    source = (Path(gpulab.__file__).parent.parent / "frontend" / "src" / "state.js").read_text()
    values = page.evaluate(
        """async ([source, times]) => {
            const url = URL.createObjectURL(new Blob([source], {type: "text/javascript"}));
            const { History } = await import(url);
            const history = new History(180);
            const rows = times.map((time) => ({ time, figures: new Float32Array([50, 0, 0, 0]) }));
            history.replace({ layout: 1, rows }, 0);
            return history.series(0, 0)[1];
        }""",
        [source, [NOON, NOON + 1, NOON + 2.4, NOON + 3, NOON + 5, NOON + 6]],
    )
    assert values == [50, 50, 50, 50, None, 50, 50]


def waiter(place: int, who: str, **changes: Any) -> dict[str, Any]:
    entry = {"place": place, "who": who, "notebook": None, "for": "1 GPU", "priority": "normal"}
    return {**entry, "since": NOON - 86_400 * 3, "answers": True, **changes}


def test_who_waits_is_listed_below_the_gpus_and_nothing_of_theirs_is_markup(page: Page) -> None:
    evil = "<img src=x onerror=alert(1)>"
    waiting = [
        waiter(1, "ada", notebook="train.ipynb", priority="high"),
        waiter(2, evil, **{"for": "8.0 GiB of a GPU"}, answers=False),
        *(waiter(place, "grace") for place in range(3, 9)),
        {"more": 4},
    ]
    show(page, [device(0)], machine={**MACHINE, "mode": "team"})
    expect(page.locator(".gl-queue")).to_be_hidden()
    page.evaluate("waiting => change({waiting})", waiting)
    expect(page.locator(".gl-queue-title")).to_have_text("Waiting: 12")
    expect(page.locator(".gl-queue-line")).to_have_count(5)
    expect(page.locator(".gl-queue-rest")).to_have_text("and 7 more")
    lines = [" ".join(text.split()) for text in page.locator(".gl-queue-line").all_inner_texts()]
    assert re.fullmatch(r"1 ada · train\.ipynb waits for 1 GPU, since .*\d\d:\d\d, high priority", lines[0])
    assert re.fullmatch(
        rf"2 {re.escape(evil)} waits for 8\.0 GiB of a GPU, since .*\d\d:\d\d, does not answer now", lines[1]
    )
    expect(page.locator("#root img")).to_have_count(0)
    page.evaluate("change({waiting: []})")
    expect(page.locator(".gl-queue")).to_be_hidden()
