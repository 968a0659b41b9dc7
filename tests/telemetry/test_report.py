"""A report's figures against what was written into the history, and its verdict against the case."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from gpulab.config import Settings
from gpulab.hardware import record
from gpulab.hardware.devices import Device, DriverState, Memory, Process, Snapshot
from gpulab.telemetry.report import Report, between
from gpulab.telemetry.store import Store

GIB = 2**30
START = 1_800_000_000.0
PID = 4711
Write = Callable[..., Report]


def device(seconds: float, **values: Any) -> Device:
    held = values.pop("own", 8 * GIB)
    others = tuple(values.pop("others", ()))
    own = (
        () if held is None else (Process(PID, "me", "python", held, values.pop("own_percent", None), uid=1),)
    )
    used = values.pop("used", 10 * GIB)
    return Device(
        0,
        "GPU-a",
        "Test GPU",
        memory=Memory(80 * GIB, used, 80 * GIB - used, 0),
        processes=(*own, *others),
        power_limit_watts=700.0,
        sampled_at=START + seconds,
        **{
            "gpu_percent": 80.0,
            "memory_percent": 40.0,
            "power_watts": 500.0,
            "throttle_reasons": (),
            **values,
        },
    )


@pytest.fixture
def write(settings: Settings) -> Write:
    """Write one sample each 0.2 s, from 1 s before to 1 s after, as `of(seconds)` says; report on it."""

    def report(of: Callable[[float], Device | None], seconds: float = 5.0, **options: Any) -> Report:
        store = Store(settings)
        snapshot = None
        for tick in range(-5, round(seconds * 5) + 6):
            at = tick / 5
            found = of(at)
            if found is not None:
                snapshot = Snapshot(START + at, DriverState(), (found,), simulated=True)
                assert store.append(snapshot, close=True)
        store.close()
        if snapshot is not None:
            record.publish(snapshot, settings)
        arguments = {"pid": PID, "uuids": ["GPU-a"], "cpu_seconds": 1.0, **options}
        return between(settings, START, START + seconds, **arguments)

    return report


def test_the_figures_are_those_of_the_time_between(write: Write) -> None:
    def of(t: float) -> Device:
        inside = 0 < t <= 5
        return device(
            t,
            gpu_percent=60.0 if inside else 5.0,
            power_watts=400.0,
            energy_joules=1000 + 400 * (t + 1),
            own=(12 if t > 2 else 4) * GIB,
            used=(14 if t > 2 else 6) * GIB,
            pcie_rx_bytes_per_second=2e9,
        )

    report = write(of)
    (gpu,) = report.devices
    assert gpu.gpu_percent == pytest.approx(60)
    assert gpu.energy_joules == pytest.approx(2000)
    assert gpu.energy_source == "counter"
    assert (gpu.own_max_bytes, gpu.own_growth_bytes) == (12 * GIB, 8 * GIB)
    assert (gpu.memory_max_bytes, gpu.memory_total_bytes) == (14 * GIB, 80 * GIB)
    assert (gpu.others, gpu.braked) == (0, ())
    assert gpu.pcie_rx_bytes_per_second == pytest.approx(2e9)
    assert report.due in (25, 26)
    assert report.got == report.due
    assert report.simulated


def test_without_a_counter_energy_is_the_integral_of_power_and_says_so(write: Write) -> None:
    report = write(lambda t: device(t, power_watts=100.0 if t <= 2.5 else 300.0))
    (gpu,) = report.devices
    assert gpu.energy_joules == pytest.approx(100 * 2.5 + 300 * 2.5, rel=0.05)
    assert gpu.energy_source == "power"
    assert "from its power" in str(report)


def test_nothing_is_summed_over_a_gap(write: Write) -> None:
    silent = write(lambda t: None if 1 < t < 14 else device(t), seconds=15.0)
    (gpu,) = silent.devices
    assert (gpu.energy_joules, gpu.energy_source) == (None, None)
    assert silent.got < silent.due
    assert "<polyline" in silent._repr_html_()


@pytest.mark.parametrize(
    "counter", [lambda t: 50 + t if t < 0 else 500 * t, lambda t: 5e6 if t > 4 else 500 * t]
)
def test_an_energy_counter_that_cannot_be_true_gives_way_to_the_power(
    write: Write, counter: Callable[[float], float]
) -> None:
    """One that began anew and has passed its old value since, and one that leaps."""
    report = write(lambda t: device(t, energy_joules=counter(t), power_watts=300.0))
    (found,) = report.devices
    assert found.energy_source == "power"
    assert found.energy_joules == pytest.approx(300 * 5, rel=0.01)


def test_a_counter_that_began_anew_before_the_cell_is_believed(write: Write) -> None:
    report = write(lambda t: device(t, energy_joules=9e6 if t < -0.5 else 600 * (t + 1), power_watts=50.0))
    (found,) = report.devices
    assert (found.energy_source, found.energy_joules) == ("counter", pytest.approx(600 * 5, rel=0.01))


def test_an_energy_counter_that_starts_over_says_nothing(write: Write) -> None:
    (gpu,) = write(lambda t: device(t, energy_joules=5000.0 if t < 3 else 10.0, power_watts=None)).devices
    assert gpu.energy_joules is None


def test_what_is_unknown_stays_unknown(write: Write) -> None:
    def of(t: float) -> Device:
        nothing = device(t, gpu_percent=None, memory_percent=None, power_watts=None, throttle_reasons=None)
        return nothing._replace(processes=None, memory=Memory())

    report = write(of)
    (gpu,) = report.devices
    assert gpu[4:15] == (None,) * 11
    assert report.verdict.kind == "unknown"
    assert json.loads(json.dumps(report.to_dict()))["devices"][0]["gpu_percent"] is None


def test_in_a_container_this_process_is_not_told_from_others(write: Write) -> None:
    report = write(device, pid=None)
    (gpu,) = report.devices
    assert (gpu.own_max_bytes, gpu.own_percent, gpu.others) == (None, None, None)
    assert "this process's own is not told" in str(report)


OTHER = Process(99, "you", "python", 2 * GIB, 50.0, uid=2)


@pytest.mark.parametrize(
    ("kind", "words", "values", "options"),
    [
        ("fine", "80 % of the time", {}, {}),
        ("starved", "1.0 cores busy", {"gpu_percent": 20.0}, {"cpu_seconds": 5.0}),
        ("waiting", "only 0.1 cores", {"gpu_percent": 20.0}, {"cpu_seconds": 0.5}),
        ("transfer", "12.0 GB/s to the GPU", {"gpu_percent": 30.0, "pcie_rx_bytes_per_second": 12e9}, {}),
        ("transfer", "9.0 GB/s from", {"gpu_percent": 30.0, "pcie_tx_bytes_per_second": 9e9}, {}),
        (
            "small_launches",
            "120 of 700 W",
            {"gpu_percent": 99.0, "power_watts": 120.0, "memory_percent": 5.0},
            {},
        ),
        ("fine", "99 %", {"gpu_percent": 99.0, "power_watts": 120.0, "memory_percent": 60.0}, {}),
        ("memory", "78.0 GiB of 80.0 GiB", {"used": 78 * GIB}, {}),
        ("unused", "did not use the GPU", {"own": None, "gpu_percent": 0.0}, {}),
        ("unused", "80 % busy with others", {"own": None, "others": [OTHER]}, {}),
        ("unused", "80 % busy with work of no process that is listed", {"own": None}, {}),
        ("unused", "hardly used", {"gpu_percent": 1.0}, {}),
        ("unknown", "whose share", {"others": [OTHER]}, {}),
        ("unknown", "Too short", {}, {"seconds": 0.4}),
        ("unknown", "unresponsive", {"state": "unresponsive"}, {}),
    ],
)
def test_the_verdict_names_the_case_with_its_figures(
    write: Write, kind: str, words: str, values: dict[str, Any], options: dict[str, Any]
) -> None:
    verdict = write(lambda t: device(t, **values), **options).verdict
    assert (verdict.kind, words in verdict.sentence) == (kind, True), verdict


def test_with_others_on_the_gpu_this_process_is_judged_by_its_own_share(write: Write) -> None:
    report = write(lambda t: device(t, gpu_percent=45.0, own_percent=10.0, others=[OTHER]), cpu_seconds=4.9)
    (gpu,) = report.devices
    assert gpu.own_percent == pytest.approx(10, abs=1)
    assert gpu.others == 1
    assert report.verdict.kind == "starved"
    assert "shared with another process" in str(report)


def test_what_this_process_took_after_the_cell_is_not_the_cells(write: Write) -> None:
    (gpu,) = write(lambda t: device(t, own=(2 if t <= 5.3 else 60) * GIB)).devices
    assert (gpu.own_max_bytes, gpu.own_growth_bytes) == (2 * GIB, 0)


def test_a_neighbour_that_rested_is_not_counted_as_one_who_shared(write: Write) -> None:
    resting = OTHER._replace(gpu_percent=0.0)
    report = write(lambda t: device(t, gpu_percent=85.0, others=[resting]))
    assert (report.devices[0].others, report.verdict.kind) == (0, "fine")


def test_a_child_of_the_same_account_is_not_called_others_work(write: Write) -> None:
    child = Process(5555, "me", "python train.py", 8 * GIB, 90.0, uid=1)
    report = write(lambda t: device(t, own=None, gpu_percent=92.0, others=[child]), uid=1)
    assert (report.devices[0].kin, report.verdict.kind) == (1, "unknown")
    assert "If the cell started it, that is its work" in report.verdict.sentence


def test_samples_that_a_lost_gpu_did_not_answer_are_not_counted_as_there(write: Write) -> None:
    nothing = {"gpu_percent": None, "power_watts": None, "memory_percent": None, "state": "lost"}
    report = write(lambda t: device(t, **(nothing if 1 < t < 4 else {})))
    assert 10 <= report.got <= 13 < report.due
    assert "did not answer in 5" in report.verdict.sentence


def test_power_is_not_summed_over_more_than_three_periods_without_it(write: Write) -> None:
    (gpu,) = write(lambda t: device(t, power_watts=None if 1 < t < 2.2 else 300.0)).devices
    assert (gpu.energy_joules, gpu.energy_source) == (None, None)


def test_a_clock_that_was_set_meanwhile_leaves_nothing_to_say(write: Write) -> None:
    report = write(device, wall_seconds=60.0)
    assert "clock was set, or it slept" in report.verdict.sentence


def test_what_held_the_clocks_down_is_told_with_its_share(write: Write) -> None:
    report = write(lambda t: device(t, throttle_reasons=("sw_power_cap",) if t > 2.5 else ()))
    ((word, share),) = report.devices[0].braked
    assert word == "power cap"
    assert share == pytest.approx(0.5, abs=0.05)
    assert "% of the time (power cap)" in report.verdict.sentence


def test_without_any_sample_the_reason_stands_in_its_place(write: Write, settings: Settings) -> None:
    report = write(lambda _: None)
    assert (report.devices, report.verdict.kind) == ((), "unknown")
    assert "gpulab doctor" in str(report)
    given = between(settings, START, START + 5, pid=PID, uuids=None, reason="The home is read-only.")
    assert "The home is read-only." in given._repr_html_()


def test_names_of_devices_cannot_break_the_page(write: Write) -> None:
    page = write(lambda t: device(t)._replace(name="<img src=x onerror=alert(1)>"))._repr_html_()
    assert "<img" not in page
    assert "&lt;img" in page


def test_the_figure_has_a_panel_for_each_gpu(write: Write, tmp_path: Any) -> None:
    drawn = write(device).plot()
    assert len(drawn.axes) == 2  # busy, and memory beside it
    assert drawn._repr_png_().startswith(b"\x89PNG")  # what a notebook shows by itself
    drawn.savefig(tmp_path / "report.png")
    assert os.path.getsize(tmp_path / "report.png") > 5000


def test_of_many_gpus_only_those_in_use_are_reported_on(write: Write) -> None:
    assert len(write(device).of_used().devices) == 1


def test_a_process_that_used_none_of_many_gpus_is_told_so_in_one_sentence(write: Write) -> None:
    report = write(lambda t: device(t, own=None)).of_used()
    assert report.devices == ()
    assert report.verdict.kind == "unused"
    assert "did not use the GPU that it can see" in str(report)
    assert len(str(report).splitlines()) == 2


def test_of_a_cell_too_short_for_a_sample_nothing_is_said_to_be_untold(write: Write) -> None:
    page = str(write(lambda t: device(t) if t < 0 or t > 0.3 else None, seconds=0.1))
    assert "Too short" in page
    assert "not told by the driver" not in page
    assert "n/a" not in page


def test_without_a_sample_it_is_not_said_that_a_gpu_was_not_used(write: Write) -> None:
    report = write(lambda t: device(t, own=None) if t < 0 or t > 0.3 else None, seconds=0.1).of_used()
    assert report.verdict.kind == "unknown"
    assert "too short for a sample" in str(report)
    assert "did not use" not in str(report)
