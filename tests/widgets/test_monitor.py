from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import gpulab
from gpulab.config import Settings
from gpulab.errors import GpulabError, RequestError
from gpulab.widgets import monitor as module
from gpulab.widgets import pump
from gpulab.widgets.monitor import Monitor, team

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(autouse=True)
def own_pump(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pump per kernel, so here one per test."""
    monkeypatch.setattr(pump, "_shared", None)
    monkeypatch.setattr(pump, "SILENCE_SECONDS", 0.5)


def test_it_shows_every_gpu_at_once_with_its_history_and_a_text(settings: Settings) -> None:
    widget = gpulab.monitor()
    assert isinstance(widget, Monitor)
    assert len(widget.devices) == 8
    assert widget.machine["simulated"] is True
    assert len(widget.window) > 16
    assert widget.text.count("utilization") == 8


def test_what_is_displayed_has_the_figures_for_pages_without_a_kernel(settings: Settings) -> None:
    data, _ = gpulab.monitor()._repr_mimebundle_()
    assert WIDGET in data
    assert data["text/html"].count("<tr>") == 9
    assert "simulated" in data["text/html"]
    assert data["text/plain"].startswith(
        "Simulated GPUs.\nGPU 0, NVIDIA H100 80GB HBM3 (simulated): utilization "
    )


def test_the_repr_is_short(settings: Settings) -> None:
    assert repr(gpulab.monitor()) == "<gpulab monitor, 8 GPUs>"


def test_a_second_monitor_is_another_view_of_the_same_pump(settings: Settings) -> None:
    first, second = gpulab.monitor(), team()
    assert first.model_id != second.model_id
    assert first._pump is second._pump
    assert (first.mode, second.mode) == ("visible", "team")


def test_wrong_arguments_are_refused_in_one_sentence(settings: Settings) -> None:
    with pytest.raises(RequestError, match=r"devices is 'some'; it must be one of visible, all\."):
        gpulab.monitor("some")
    with pytest.raises(TypeError, match="colour"):
        gpulab.monitor(colour="red")
    with pytest.raises(TypeError, match="colour"):
        Monitor(colour="red")


def test_a_heartbeat_from_the_front_end_keeps_the_pump_going_and_nonsense_does_no_harm(
    settings: Settings, until: Callable[..., None]
) -> None:
    widget = gpulab.monitor()
    until(lambda: not widget._pump.running, "the pump to stop")
    for nonsense in ({}, {"kind": "other"}, {"kind": ["beat"]}, {"kind": None}):
        widget._handle_custom_msg(nonsense, [])
    assert not widget._pump.running
    widget._handle_custom_msg({"kind": "beat"}, [])
    assert widget._pump.running


def test_the_front_end_is_text_and_asks_no_other_host(settings: Settings) -> None:
    widget = gpulab.monitor()
    assert widget._esm.startswith("/* gpulab front end, sources ")
    for text in (widget._esm, widget._css):
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "https://" not in text


def test_a_tree_whose_front_end_was_never_bundled_says_what_to_do(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_STATIC", tmp_path)
    module._front_end.cache_clear()
    with pytest.raises(GpulabError, match=r"not bundled; run `python frontend/bundle.py`"):
        gpulab.monitor()
    module._front_end.cache_clear()


def test_naming_the_monitor_costs_nothing_and_using_it_loads_no_nvml(settings: Settings) -> None:
    code = (
        "import sys, gpulab; assert 'anywidget' not in sys.modules; "
        "gpulab.monitor(); assert 'pynvml' not in sys.modules; print('fine')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")
