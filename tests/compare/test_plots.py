"""The figure: what is drawn, and that it can be read on light and dark pages."""

from __future__ import annotations

import io
from typing import Any

import matplotlib as mpl
import matplotlib.style
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from gpulab.compare import plots
from gpulab.compare.result import Result


def lines(result: Result) -> dict[str, Any]:
    axes = result.plot().axes[0]
    return {line.get_label(): line for line in axes.get_lines()}


def without_gpu(record: dict[str, Any]) -> Result:
    record["backends"][2].update(state="unavailable", reason="there is no driver here; install one")
    for run in record["runs"]:
        run["measurements"].pop()
        run["parity"] = []
    return Result.from_dict(record)


def test_both_sides_are_lines_through_their_medians(example: Result) -> None:
    drawn = lines(example)
    cpu = drawn["CPU: Example trees (4 threads)"]
    gpu = drawn["GPU: Example brute, end to end"]
    assert list(cpu.get_xdata()) == [100, 10_000]
    assert list(cpu.get_ydata()) == pytest.approx([1.0, 8.0])
    assert list(gpu.get_ydata()) == pytest.approx([4.0, 2.0])
    assert list(drawn["GPU: compute alone"].get_ydata()) == pytest.approx([3.2, 1.6])
    assert list(drawn["transfer to the device"].get_ydata()) == pytest.approx([0.4, 0.2])
    assert list(drawn["transfer back"].get_ydata()) == pytest.approx([0.4, 0.2])


def test_the_bands_are_the_intervals_of_the_medians(example: Result) -> None:
    bands = example.plot().axes[0].collections
    assert len(bands) == 2
    for band, backend in zip(bands, ("trees", "brute"), strict=True):
        summary = example.summary(backend, 10_000)
        assert summary is not None
        heights = band.get_paths()[0].vertices[:, 1]
        assert {round(summary.low, 6), round(summary.high, 6)} <= {round(float(y), 6) for y in heights}  # type: ignore[arg-type]


def test_the_crossover_and_the_losers_of_the_race_are_marked(example: Result) -> None:
    drawn = lines(example)
    assert next(iter(drawn["crossover: about 1,000"].get_xdata())) == pytest.approx(1000)
    assert list(drawn["other CPU backends (short race)"].get_ydata()) == pytest.approx([3.0, 24.0])


def test_without_a_gpu_the_figure_says_why_that_side_is_empty(record: dict[str, Any]) -> None:
    plot = without_gpu(record).plot()
    labels = [line.get_label() for line in plot.axes[0].get_lines()]
    assert not [label for label in labels if "GPU" in label or "crossover" in label]
    note = plot.get_supxlabel()
    assert "GPU: not measured. There is no driver here" in note
    assert "There is no driver here" in plot.description


def test_an_example_is_labelled_as_one(example: Result) -> None:
    assert "example, not measured" in example.plot().axes[0].get_title(loc="left")


def luminance(colour: Any) -> float:
    parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("colour", [plots.INK, plots.FAINT, plots.CPU, plots.GPU, plots.IN, plots.OUT])
def test_ink_and_lines_stand_out_from_the_ground(colour: str) -> None:
    assert (luminance(plots.GROUND) + 0.05) / (luminance(colour) + 0.05) >= 4.5


def pixels(plot: Any) -> Any:
    from matplotlib.image import imread

    return imread(io.BytesIO(plot._repr_png_()))


def test_the_picture_is_the_same_whatever_style_the_user_has(example: Result) -> None:
    light = pixels(example.plot())
    with mpl.style.context("dark_background"):
        dark = pixels(example.plot())
        assert mpl.rcParams["text.color"] == "white", "the user's style is left alone"
    assert np.array_equal(light, dark)
    assert (light[..., 3] == 1).all(), "opaque, so that a dark page does not shine through"
    assert (light[0, 0, :3] == 1).all()


def test_text_of_a_result_is_no_formula(record: dict[str, Any]) -> None:
    record["title"] = "costs $\\undefined{$ and $_"
    record["backends"][0]["title"] = "$\\frac$"
    assert pixels(Result.from_dict(record).plot()).size


def test_a_result_with_nothing_measured_can_still_be_drawn(record: dict[str, Any]) -> None:
    for run in record["runs"]:
        run.update(state="not_run", reason="too large", measurements=[], race={}, parity=[], best_cpu=None)
    assert pixels(Result.from_dict(record).plot()).size
    record["runs"] = []
    plot = Result.from_dict(record).plot()
    assert "Nothing was measured" in plot.get_supxlabel()


def test_one_size_alone_is_drawn_as_marks(record: dict[str, Any]) -> None:
    record["runs"] = record["runs"][1:]
    assert pixels(Result.from_dict(record).plot()).size
