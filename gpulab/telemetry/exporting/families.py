"""The metrics of the driver and the devices, made from the facts of one instant; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import gpulab
from gpulab.allocation.policy import is_drained
from gpulab.hardware.devices import DEVICE_STATES, Device
from gpulab.hardware.throttling import REASONS
from gpulab.telemetry.exporting.facts import Facts, Labels, clean, labels_of

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily, Metric

__all__ = ["devices", "gauge", "machine"]

_DRIVER_STATES = (
    "ok",
    "no_library",
    "no_driver",
    "driver_mismatch",
    "no_permission",
    "unresponsive",
    "paused",
    "error",
)

_GAUGES: tuple[tuple[str, str, Callable[[Device], float | None]], ...] = (
    (
        "utilization_ratio",
        "Share of the last sample period with a kernel running, 0 to 1; not occupancy.",
        lambda device: _scaled(device.gpu_percent, 0.01),
    ),
    (
        "memory_utilization_ratio",
        "Share of the last sample period in which memory was read or written, 0 to 1; not memory in use.",
        lambda device: _scaled(device.memory_percent, 0.01),
    ),
    ("memory_size_bytes", "All memory of the device.", lambda device: device.memory.total_bytes),
    ("memory_used_bytes", "Memory in use.", lambda device: device.memory.used_bytes),
    ("memory_free_bytes", "Memory that can still be had.", lambda device: device.memory.free_bytes),
    (
        "memory_reserved_bytes",
        "What the driver keeps for itself.",
        lambda device: device.memory.reserved_bytes,
    ),
    ("temperature_celsius", "Temperature of the chip.", lambda device: device.temperature_celsius),
    ("power_watts", "Power drawn.", lambda device: device.power_watts),
    ("power_limit_watts", "The most power that is allowed.", lambda device: device.power_limit_watts),
    ("sm_clock_hertz", "Clock of the multiprocessors.", lambda device: _scaled(device.sm_clock_mhz, 1e6)),
    ("memory_clock_hertz", "Clock of the memory.", lambda device: _scaled(device.memory_clock_mhz, 1e6)),
    (
        "pcie_receive_bytes_per_second",
        "To the device over PCIe; only while somebody asks for it.",
        lambda device: device.pcie_rx_bytes_per_second,
    ),
    (
        "pcie_transmit_bytes_per_second",
        "From the device over PCIe; only while somebody asks for it.",
        lambda device: device.pcie_tx_bytes_per_second,
    ),
    (
        "nvlink_receive_bytes_per_second",
        "To the device over NVLink; only while somebody asks for it.",
        lambda device: device.nvlink_rx_bytes_per_second,
    ),
    (
        "nvlink_transmit_bytes_per_second",
        "From the device over NVLink; only while somebody asks for it.",
        lambda device: device.nvlink_tx_bytes_per_second,
    ),
    (
        "processes",
        "How many processes use the device.",
        lambda device: None if device.processes is None else len(device.processes),
    ),
)


def machine(facts: Facts) -> Iterator[Metric]:
    """What gpulab says of itself and the driver, and how old what is told is."""
    from prometheus_client.core import InfoMetricFamily

    host, fresh = clean(facts.host), facts.fresh
    us = InfoMetricFamily("gpulab", "The exporter, and whose leases it sees: of the host or of an account.")
    us.add_metric((), {"host": host, "version": gpulab.__version__, "lease_scope": facts.scope or ""})
    yield us
    up = gauge("gpulab_up", "1 if the sample is fresh and the driver answers.", ("host",))
    up.add_metric((host,), float(fresh is not None and fresh.driver.ok))
    yield up
    age = gauge("gpulab_sample_age_seconds", "Time since the newest sample.", ("host",))
    if facts.age is not None:
        age.add_metric((host,), facts.age)
    yield age
    if fresh is None:
        return
    simulated = gauge("gpulab_simulated", "1 if there is no real GPU behind these figures.", ("host",))
    simulated.add_metric((host,), float(fresh.simulated))
    yield simulated
    states = gauge("gpulab_driver_state", "1 for the state that the driver is in.", ("host", "state"))
    for state in dict.fromkeys((*_DRIVER_STATES, fresh.driver.state)):
        states.add_metric((host, clean(state)), float(state == fresh.driver.state))
    yield states
    driver = InfoMetricFamily("gpulab_driver", "Versions of the driver and of the CUDA that it supports.")
    if fresh.driver.driver is not None:
        versions = {"driver": clean(fresh.driver.driver), "cuda": clean(fresh.driver.cuda or "")}
        driver.add_metric((), {"host": host, **versions})
    yield driver


def devices(facts: Facts, drained: tuple[str, ...]) -> Iterator[Metric]:
    """The devices of a fresh sample; one that is not well has its state and no figures."""
    if facts.fresh is None:
        return
    every = [(device, labels_of(device, facts.host)) for device in facts.fresh.devices]
    well = [(device, labels) for device, labels in every if device.state == "ok"]
    states = gauge(
        "gpulab_device_state", "1 for the state that the device is in.", (*Labels._fields, "state")
    )
    taken = gauge(
        "gpulab_device_drained", "1 if the administrator has taken it out of service.", Labels._fields
    )
    for device, labels in every:
        for state in dict.fromkeys((*DEVICE_STATES, device.state)):
            states.add_metric((*labels, clean(state)), float(state == device.state))
        taken.add_metric(labels, float(is_drained(device, drained)))
    yield states
    yield taken
    yield _info(well)
    for name, text, value_of in _GAUGES:
        family = gauge(f"gpulab_device_{name}", text, Labels._fields)
        for device, labels in well:
            value = value_of(device)
            if value is not None:
                family.add_metric(labels, float(value))
        yield family
    yield _energy(well)
    yield _throttling(well)


def _info(well: list[tuple[Device, Labels]]) -> Metric:
    from prometheus_client.core import InfoMetricFamily

    family = InfoMetricFamily("gpulab_device", "What is told of a device and seldom changes.")
    for device, labels in well:
        told = {"kind": clean(device.kind), "compute_mode": clean(device.compute_mode or "")}
        family.add_metric((), {**labels._asdict(), **told})
    return family


def _energy(well: list[tuple[Device, Labels]]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(
        "gpulab_device_energy_joules", "Energy since the driver was loaded.", labels=Labels._fields
    )
    for device, labels in well:
        if device.energy_joules is not None:
            family.add_metric(labels, device.energy_joules)
    return family


def _throttling(well: list[tuple[Device, Labels]]) -> Metric:
    family = gauge(
        "gpulab_device_throttled",
        "1 for each reason for which the clocks are lower than they could be.",
        (*Labels._fields, "reason"),
    )
    for device, labels in well:
        if device.throttle_reasons is not None:
            for reason in dict.fromkeys((*REASONS, *device.throttle_reasons)):
                family.add_metric((*labels, clean(reason)), float(reason in device.throttle_reasons))
    return family


def gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    """An empty family of gauges with these labels."""
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(name, text, labels=labels)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
