from __future__ import annotations

import pytest

from gpulab.config import Settings
from gpulab.hardware.devices import Device, DriverState, Memory, Snapshot
from gpulab.telemetry import series
from gpulab.telemetry.store import Store

NOON = 1_799_996_400.0
"""A full hour."""


def fill(settings: Settings, seconds: float, *, period: float = 1.0, **figures: object) -> None:
    """Samples from noon on; what is callable is asked for each second."""
    now = [NOON]
    store = Store(settings, period=period, clock=lambda: now[0])
    while now[0] < NOON + seconds:
        told = {key: value(now[0] - NOON) if callable(value) else value for key, value in figures.items()}
        device = Device(0, "GPU-a", memory=Memory(used_bytes=told.pop("used", None)), **told)
        assert store.append(Snapshot(now[0], DriverState(), (device,)))
        now[0] += period
    store.close()


def test_a_minute_has_means_peaks_and_the_energy_of_the_counter(settings: Settings) -> None:
    fill(
        settings,
        125,
        gpu_percent=lambda t: 100.0 if t % 2 else 0.0,
        used=lambda t: 2**30 if t == 30 else 2**20,
        power_watts=300.0,
        temperature_celsius=lambda t: 40 + t / 10,
        energy_joules=lambda t: 5000 + 200 * t,
    )
    first, second = series.rollups(settings, NOON, NOON + 120)
    assert first[:5] == (NOON, "GPU-a", 60.0, 50.0, 100.0)
    assert first.memory_max_bytes == 2**30
    assert first.memory_used_bytes == pytest.approx((59 * 2**20 + 2**30) / 60, abs=1)
    assert first.power_watts == 300
    assert first.temperature_max_celsius == pytest.approx(46)
    assert first.energy_joules == second.energy_joules == 12_000  # not 18,000, which the power makes


def test_without_a_counter_energy_is_the_integral_of_the_power(settings: Settings) -> None:
    fill(settings, 62, power_watts=lambda t: 100 + t)
    assert series.rollups(settings, NOON, NOON + 60)[0].energy_joules == pytest.approx(60 * 130)


def test_a_counter_that_begins_anew_takes_nothing_back(settings: Settings) -> None:
    fill(settings, 62, power_watts=100.0, energy_joules=lambda t: 1e6 + 100 * t if t < 30 else 100 * (t - 30))
    assert series.rollups(settings, NOON, NOON + 60)[0].energy_joules == pytest.approx(6000)


def test_unknown_figures_stay_unknown(settings: Settings) -> None:
    fill(settings, 62)
    assert series.rollups(settings, NOON, NOON + 60)[0] == (NOON, "GPU-a", 60.0, *[None] * 7)


def test_a_slower_sampler_leaves_no_gaps(settings: Settings) -> None:
    fill(settings, 3700, period=30.0, gpu_percent=50.0)
    assert {rollup.seconds for rollup in series.rollups(settings, NOON, NOON + 3600)} == {60.0}


def test_an_hour_is_the_sum_of_its_minutes(settings: Settings) -> None:
    fill(settings, 7300, period=2.0, gpu_percent=lambda t: 100.0 if t <= 900 else 0.0, power_watts=50.0)
    hours = series.rollups(settings, NOON, NOON + 7200, level="hour")
    assert [hour.time for hour in hours] == [NOON, NOON + 3600]
    assert hours[0].seconds == 3600
    assert hours[0].gpu_percent == pytest.approx(25, abs=0.1)
    assert hours[0].gpu_max == 100
    assert hours[0].energy_joules == pytest.approx(180_000)
    assert hours[1].gpu_percent == 0
