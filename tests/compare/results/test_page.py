"""The HTML page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from gpulab.compare.result import Result
from gpulab.compare.results.page import to_html


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_holds_table_figure_and_circumstances_and_asks_nothing_of_others(example: Result) -> None:
    page = to_html([example])
    links = Links()
    links.feed(page)
    assert links.found
    assert all(link.startswith("data:image/png;base64,") for link in links.found)
    assert not re.search(r"https?://|@import|url\(", page)
    assert {"table", "img", "details"} <= set(links.tags)
    assert "script" not in links.tags
    assert "Example CPU; usable cores: 4; quota: n/a" in page
    assert example.verdict in page


def test_a_gpu_on_which_nothing_was_measured_is_said_to_be_unmeasured(
    record: dict[str, Any], example: Result
) -> None:
    assert "not measured</dd>" not in to_html([example])
    for run in record["runs"]:
        run["measurements"].pop()
    assert "Example GPU, driver n/a, CUDA n/a; not measured</dd>" in to_html([Result.from_dict(record)])


def test_nothing_in_a_result_can_put_markup_into_the_page(record: dict[str, Any]) -> None:
    attack = "'\"><script>alert(1)</script>"
    record["title"] = record["teaches"] = record["date"] = attack
    record["backends"][0].update(versions={attack: attack}, facts={attack: attack}, reason=attack)
    links = Links()
    links.feed(to_html([Result.from_dict(record)]))
    assert "script" not in links.tags
