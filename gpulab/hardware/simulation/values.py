"""What one simulated GPU answers: its names, numbers and structures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpulab.hardware.simulation.machine import COMPUTE_MODES, integral
from gpulab.hardware.simulation.registry import (
    NOT_SUPPORTED,
    OK,
    WRONG_VERSION,
    device_call,
    out,
    write,
)
from gpulab.hardware.simulation.target import Target

__all__: list[str] = []

_MEMORY_V2 = 0x02000028
_UNSIGNED_LONG_LONG = 3
_TEMPERATURE_V1 = 0x0100000C
_CLOCKS = {0: (1980, 345), 1: (1980, 345), 2: (2619, 2619), 3: (1545, 765)}
"""Graphics, SM, memory, video: busy and idle MHz."""
_THRESHOLDS = {0: 92, 1: 89, 3: 87}

_NUMBERS: dict[str, Callable[[Target], float | None]] = {
    "Index": lambda t: t.device.index,
    "MinorNumber": lambda t: t.device.index,
    "ModuleId": lambda t: t.device.index,
    "BoardId": lambda t: 0x100 * (t.device.index + 1),
    "Brand": lambda _: None,
    "Architecture": lambda t: t.device.model.architecture,
    "FanSpeed": lambda t: None if t.part else min(100, 30 + t.percent() // 2),
    "PowerUsage": lambda t: None if t.part else 1000 * t.device.watts(t.machine.seconds()),
    "EnforcedPowerLimit": lambda t: None if t.part else 1000 * t.device.power_limit,
    "PowerManagementLimit": lambda t: None if t.part else 1000 * t.device.power_limit,
    "PowerManagementDefaultLimit": lambda t: None if t.part else 1000 * t.device.model.power_limit,
    "TotalEnergyConsumption": lambda t: None if t.part else 1000 * t.joules(),
    "PersistenceMode": lambda _: 1,
    "PerformanceState": lambda t: None if t.part else 0,
    "PowerState": lambda t: None if t.part else 0,
    "ComputeMode": lambda t: COMPUTE_MODES[t.device.compute_mode],
    "DisplayActive": lambda _: 0,
    "DisplayMode": lambda _: 0,
    "MaxPcieLinkGeneration": lambda _: 4,
    "CurrPcieLinkGeneration": lambda _: 4,
    "MaxPcieLinkWidth": lambda _: 16,
    "CurrPcieLinkWidth": lambda _: 16,
    "GpuInstanceId": lambda t: None if t.place is None else t.place + 1,
    "ComputeInstanceId": lambda t: None if t.place is None else 0,
    "MaxMigDeviceCount": lambda t: 7 if t.device.model.mig else 0,
}
"""Calls with one number to write; None says "not supported"."""


def _number_call(read: Callable[[Target], float | None]) -> Callable[..., int]:
    def answer(target: Target, number: Any) -> int:
        value = read(target)
        if value is None:
            return NOT_SUPPORTED
        out(number).value = round(value)
        return OK

    return answer


for _name, _read in _NUMBERS.items():
    device_call(f"nvmlDeviceGet{_name}")(_number_call(_read))
device_call("nvmlDeviceIsMigDeviceHandle")(_number_call(lambda t: int(t.place is not None)))


@device_call("nvmlDeviceGetName")
def _name_of(target: Target, buffer: Any, length: Any) -> int:
    return write(buffer, length, target.name)


@device_call("nvmlDeviceGetUUID")
def _uuid(target: Target, buffer: Any, length: Any) -> int:
    return write(buffer, length, target.uuid)


@device_call("nvmlDeviceGetMigMode")
def _mig_mode(target: Target, current: Any, pending: Any) -> int:
    if not target.device.model.mig or target.part:
        return NOT_SUPPORTED
    out(current).value = out(pending).value = int(bool(target.device.slices))
    return OK


@device_call("nvmlDeviceGetCudaComputeCapability")
def _capability(target: Target, major: Any, minor: Any) -> int:
    out(major).value, out(minor).value = target.device.model.capability
    return OK


@device_call("nvmlDeviceGetPowerManagementLimitConstraints")
def _limits(target: Target, low: Any, high: Any) -> int:
    out(high).value = round(1000 * target.device.model.power_limit)
    out(low).value = round(500 * target.device.model.power_limit)
    return OK


def _is_sliced(target: Target) -> bool:
    """NVML gives no utilization of a sliced GPU, nor of its slices."""
    return bool(target.device.slices)


@device_call("nvmlDeviceGetUtilizationRates")
def _utilization(target: Target, rates: Any) -> int:
    if _is_sliced(target):
        return NOT_SUPPORTED
    out(rates).gpu, out(rates).memory = target.percent(), target.memory_percent()
    return OK


@device_call("nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization")
def _video(target: Target, percent: Any, period: Any) -> int:
    if _is_sliced(target):
        return NOT_SUPPORTED
    out(percent).value, out(period).value = 0, 167000
    return OK


@device_call("nvmlDeviceGetMemoryInfo")
def _memory(target: Target, info: Any) -> int:
    """The first version counts the driver's reserve as used."""
    total, reserved, used = target.memory()
    memory = out(info)
    memory.total, memory.used, memory.free = total, used + reserved, max(0, total - used - reserved)
    return OK


@device_call("nvmlDeviceGetMemoryInfo_v2")
def _memory_v2(target: Target, info: Any) -> int:
    memory = out(info)
    if memory.version != _MEMORY_V2:
        return WRONG_VERSION
    total, reserved, used = target.memory()
    memory.total, memory.reserved, memory.used = total, reserved, used
    memory.free = max(0, total - used - reserved)
    return OK


@device_call("nvmlDeviceGetBAR1MemoryInfo")
def _bar1(target: Target, info: Any) -> int:
    memory = out(info)
    memory.bar1Total, memory.bar1Used = target.device.memory_total, 2**20
    memory.bar1Free = memory.bar1Total - memory.bar1Used
    return OK


@device_call("nvmlDeviceGetTemperature")
def _temperature(target: Target, sensor: Any, celsius: Any) -> int:
    if getattr(sensor, "value", sensor) != 0:
        return NOT_SUPPORTED
    out(celsius).value = round(target.device.celsius(target.machine.seconds()))
    return OK


@device_call("nvmlDeviceGetTemperatureV")
def _temperature_v(target: Target, reading: Any) -> int:
    value = out(reading)
    if value.version != _TEMPERATURE_V1:
        return WRONG_VERSION
    if value.sensorType != 0:
        return NOT_SUPPORTED
    value.temperature = round(target.device.celsius(target.machine.seconds()))
    return OK


@device_call("nvmlDeviceGetTemperatureThreshold")
def _threshold(_target: Target, kind: Any, celsius: Any) -> int:
    value = _THRESHOLDS.get(getattr(kind, "value", kind))
    if value is None:
        return NOT_SUPPORTED
    out(celsius).value = value
    return OK


@device_call("nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo")
def _clock(target: Target, kind: Any, megahertz: Any) -> int:
    which = getattr(kind, "value", kind) % 4
    busy, idle = _CLOCKS[which]
    told = target.device.memory_clock if which == 2 else target.device.sm_clock
    out(megahertz).value = round(target.now(told)) if told is not None else busy if target.percent() else idle
    return OK


@device_call("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
def _clock_reasons(target: Target, bits: Any) -> int:
    told = target.device.throttle
    out(bits).value = int(not target.percent()) if told is None else round(target.now(told))
    return OK


@device_call("nvmlDeviceGetPcieThroughput")
def _pcie(target: Target, counter: Any, kilobytes: Any) -> int:
    told = target.device.pcie_rx if getattr(counter, "value", counter) else target.device.pcie_tx
    out(kilobytes).value = 900 * target.percent() if told is None else round(target.now(told) / 1000)
    return OK


@device_call("nvmlDeviceGetTotalEccErrors")
def _ecc(_target: Target, _kind: Any, _counter: Any, count: Any) -> int:
    out(count).value = 0
    return OK


@device_call("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo_v3")
def _pci(target: Target, info: Any) -> int:
    pci = out(info)
    pci.busId, pci.busIdLegacy = target.device.bus_id.encode(), target.device.bus_id[4:].encode()
    pci.domain, pci.bus, pci.device = 0, 0x10 + target.device.index, 0
    return OK


@device_call("nvmlDeviceGetFieldValues")
def _fields(target: Target, count: Any, values: Any) -> int:
    """NVLink's counters where the scenario has a link; each other field is one that is not there."""
    links = {138: target.device.nvlink_tx, 139: target.device.nvlink_rx}
    fields = out(values)
    for place in range(getattr(count, "value", count)):
        told = links.get(fields[place].fieldId)
        fields[place].nvmlReturn = NOT_SUPPORTED if told is None else OK
        if told is not None:
            fields[place].valueType = _UNSIGNED_LONG_LONG
            fields[place].value.ullVal = int(integral(told, target.machine.seconds()) / 1024)
    return OK


@device_call("nvmlDeviceGetCpuAffinity")
def _affinity(_target: Target, size: Any, mask: Any) -> int:
    for place in range(getattr(size, "value", size)):
        out(mask)[place] = 2**64 - 1
    return OK


@device_call("nvmlDeviceGetAttributes", "nvmlDeviceGetAttributes_v2")
def _attributes(target: Target, attributes: Any) -> int:
    if target.part is None:
        return NOT_SUPPORTED
    out(attributes).memorySizeMB = target.part.memory_total // 2**20
    out(attributes).gpuInstanceSliceCount = int(target.part.profile.partition("g")[0])
    out(attributes).computeInstanceSliceCount = out(attributes).gpuInstanceSliceCount
    return OK
