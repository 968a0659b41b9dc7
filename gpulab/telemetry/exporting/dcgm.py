"""The same devices under dcgm-exporter's names and labels, for the Grafana boards that people have.

Only what gpulab really knows: neither the address on the bus nor the minor number, so the labels
pci_bus_id and device are missing, and of the metrics those that NVML's record has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gpulab.hardware.devices import Device
from gpulab.telemetry.exporting.facts import Facts, clean

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["HOST_LABELS", "families"]

HOST_LABELS = ("hostname", "Hostname")
"""How dcgm-exporter calls the host now, and how it did before."""
_PROFILE = re.compile(r"\b[0-9]+(?:c\.[0-9]+)?g\.[0-9]+gb(?:\+[a-z.]+)?\b")
_MIB = 2.0**20

_METRICS: tuple[tuple[str, str, Callable[[Device], float | None]], ...] = (
    ("SM_CLOCK", "Clock of the multiprocessors (in MHz).", lambda device: device.sm_clock_mhz),
    ("MEM_CLOCK", "Clock of the memory (in MHz).", lambda device: device.memory_clock_mhz),
    ("GPU_TEMP", "Temperature of the GPU (in C).", lambda device: device.temperature_celsius),
    ("POWER_USAGE", "Power drawn (in W).", lambda device: device.power_watts),
    (
        "TOTAL_ENERGY_CONSUMPTION",
        "Energy since the driver was loaded (in mJ).",
        lambda device: _times(device.energy_joules, 1000.0),
    ),
    ("GPU_UTIL", "Share of time with a kernel running (in %).", lambda device: device.gpu_percent),
    ("MEM_COPY_UTIL", "Share of time in which memory was used (in %).", lambda device: device.memory_percent),
    ("FB_FREE", "Memory that is free (in MiB).", lambda device: _times(device.memory.free_bytes, 1 / _MIB)),
    ("FB_USED", "Memory in use (in MiB).", lambda device: _times(device.memory.used_bytes, 1 / _MIB)),
    (
        "FB_RESERVED",
        "Memory that the driver keeps (in MiB).",
        lambda device: _times(device.memory.reserved_bytes, 1 / _MIB),
    ),
)


def families(facts: Facts, host_label: str) -> Iterator[Metric]:
    """One for each metric that a well device of a fresh sample has, in dcgm-exporter's units."""
    from prometheus_client.core import GaugeMetricFamily, UnknownMetricFamily

    if facts.fresh is None:
        return
    driver = facts.fresh.driver.driver
    well = [device for device in facts.fresh.devices if device.state == "ok"]
    for name, text, value_of in _METRICS:
        # Counters' names end in _total, but this one's does not: so it goes without a type
        kind = UnknownMetricFamily if name == "TOTAL_ENERGY_CONSUMPTION" else GaugeMetricFamily
        family = kind(f"DCGM_FI_DEV_{name}", text)
        for device in well:
            value = value_of(device)
            if value is not None:
                family.add_sample(family.name, _labels(device, facts.host, host_label, driver), float(value))
        if family.samples:
            yield family


def _labels(device: Device, host: str, host_label: str, driver: str | None) -> dict[str, str]:
    """A MIG slice has its own UUID here, for without its number two slices of a GPU would be one series."""
    labels = {
        "gpu": clean(device.index),
        "UUID": clean(device.uuid or ""),
        "modelName": clean(device.name or ""),
        host_label: clean(host),
    }
    profile = _PROFILE.search(device.name or "") if device.kind == "mig" else None
    if profile is not None:
        labels["GPU_I_PROFILE"] = profile.group()
    if driver is not None:
        labels["DCGM_FI_DRIVER_VERSION"] = clean(driver)
    return labels


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
