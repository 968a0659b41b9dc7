"""The picture of a report: its shape, its gaps, and that nothing in it can break or leave a page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

from gpulab.telemetry.report import DeviceReport, Report
from gpulab.telemetry.reporting.timeline import figure, svg
from gpulab.telemetry.storing.rows import Sample

GIB = 2**30
Of = Callable[[float], Sample | None]


def sample(seconds: float, **values: Any) -> Sample:
    return Sample(1000 + seconds, 50.0, 40 * GIB, 300.0, 50.0)._replace(**values)


def drawn(of: Of, label: str = "GPU 0", seconds: float = 10.0) -> str:
    report = made(of, label, seconds)
    return svg(report, report.devices[0])


def made(of: Of, label: str = "GPU 0", seconds: float = 10.0) -> Report:
    samples = tuple(s for tick in range(round(5 * seconds) + 1) if (s := of(tick / 5)) is not None)
    known = {"uuid": "GPU-a", "label": label, "samples": samples, "memory_total_bytes": 80 * GIB}
    values: dict[str, Any] = {**dict.fromkeys(DeviceReport._fields), **known, "braked": ()}
    device = DeviceReport(**values)
    due = round(5 * seconds)
    return Report(1000.0, 1000 + seconds, seconds, 1.0, len(samples), due, True, (device,), None)


def lines(picture: str) -> list[list[tuple[float, float]]]:
    found = re.findall(r'<polyline points="([^"]*)"', picture)
    return [[_point(word) for word in points.split()] for points in found]


def _point(word: str) -> tuple[float, float]:
    x, _, y = word.partition(",")
    return float(x), float(y)


def test_half_busy_is_drawn_at_half_the_height_from_the_first_second_to_the_last() -> None:
    busy, memory = lines(drawn(sample))
    (left, _), (right, _) = busy[0], busy[-1]
    frame = re.search(r'<path d="M(\d+) (\d+)V(\d+)H(\d+)"', drawn(sample))
    assert frame is not None
    x0, top, base, x1 = map(int, frame.groups())
    assert (left, right) == (x0, x1)
    assert {y for _, y in busy} == {(top + base) / 2}
    assert busy == memory  # 40 of 80 GiB


def test_a_gap_stays_a_gap() -> None:
    assert len(lines(drawn(sample))) == 2
    assert len(lines(drawn(lambda t: None if 3 < t < 7 else sample(t)))) == 4
    unknown = lines(drawn(lambda t: sample(t, gpu_percent=None if 3 < t < 7 else 50.0)))
    assert len(unknown) == 3  # of utilization alone


def test_a_single_sample_is_a_dot_and_none_is_no_picture() -> None:
    alone = drawn(lambda t: sample(t) if t == 5 else None)
    assert (alone.count("<circle"), lines(alone)) == (2, [])
    assert drawn(lambda _: None) == ""


def test_moments_that_were_held_down_are_marked_and_named() -> None:
    marked = drawn(lambda t: sample(t, throttle_reasons=("hw_thermal_slowdown",) if t > 8 else ()))
    assert marked.count("<rect") == 10
    assert "held down" in marked
    assert "held down" not in drawn(sample)


def test_values_out_of_bounds_stay_inside_the_frame() -> None:
    heights = [y for line in lines(drawn(lambda t: sample(t, gpu_percent=300.0 * (t > 5)))) for _, y in line]
    assert min(heights) >= 14
    assert max(heights) <= 80


def test_a_hostile_name_is_text_and_the_picture_runs_and_loads_nothing() -> None:
    picture = drawn(sample, label='"><script>alert(1)</script>')
    root = ET.fromstring(picture)
    assert root.get("aria-label", "").count("<script>") == 1
    assert not [e for e in root.iter() if e.tag.rpartition("}")[2] in ("script", "image", "a", "style")]
    assert "http" not in picture


def test_texts_take_the_colour_of_the_page_so_that_they_are_read_on_light_and_dark() -> None:
    root = ET.fromstring(drawn(sample))
    texts = {e.text: e.get("fill") for e in root.iter("text")}
    assert (texts["0 s"], texts["10.0 s"], texts["100 %"]) == ("currentColor",) * 3
    assert "black" not in str(texts.values())
    assert {texts["busy"], texts["memory of the GPU"]} != {"currentColor"}


def test_the_figure_has_the_samples_and_says_that_they_are_simulated() -> None:
    axes = figure(made(sample)).axes
    assert axes[0].get_xlabel() == "seconds, simulated"
    (line,) = axes[1].get_lines()
    assert (len(line.get_xdata()), set(line.get_ydata())) == (51, {40.0})
