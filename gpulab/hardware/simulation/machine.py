"""The simulated machine as frozen values, evaluated in time.

All values are functions of the wall clock, so several processes that read one scenario see one machine.
"""

import math
from typing import NamedTuple

from gpulab.hardware.simulation import clock
from gpulab.hardware.simulation.profiles import Profile

__all__ = [
    "COMPUTE_MODES",
    "FIELDS",
    "LABEL",
    "MAX_DEVICES",
    "NOT_AVAILABLE",
    "Fault",
    "Machine",
    "Series",
    "SimulatedDevice",
    "SimulatedLease",
    "SimulatedProcess",
    "Slice",
    "Steps",
    "Wave",
    "calls_of",
    "device_uuid",
    "integral",
    "value_at",
]

NOT_AVAILABLE = 2**64 - 1
"""What NVML writes where a size is not known."""
MAX_DEVICES = 64
LABEL = " (simulated)"
"""What every device's name ends with, so that no client can show it as a real one."""
COMPUTE_MODES = {"default": 0, "exclusive_process": 3, "prohibited": 2}
FIELDS = {
    "memory": ("nvmlDeviceGetMemoryInfo*", "nvmlDeviceGetBAR1MemoryInfo*"),
    "utilization": ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGet*coderUtilization"),
    "temperature": ("nvmlDeviceGetTemperature*",),
    "power": ("nvmlDeviceGetPowerUsage",),
    "power_limit": ("nvmlDeviceGet*PowerLimit", "nvmlDeviceGetPowerManagementLimit*"),
    "energy": ("nvmlDeviceGetTotalEnergyConsumption",),
    "fan": ("nvmlDeviceGetFanSpeed*",),
    "compute_mode": ("nvmlDeviceGetComputeMode",),
    "processes": ("nvmlDeviceGet*RunningProcess*",),
    "process_utilization": ("nvmlDeviceGetProcessUtilization",),
    "ecc": ("nvmlDeviceGet*Ecc*",),
    "mig": ("nvmlDeviceGetMigMode",),
    "clocks": ("nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo"),
    "throttle": ("nvmlDeviceGetCurrentClocks*Reasons",),
    "pcie": ("nvmlDeviceGetPcieThroughput",),
    "nvlink": ("nvmlDeviceGetFieldValues",),
}
"""What a device's "missing" may name, and the calls that then say "not supported"."""


class Wave(NamedTuple):
    """From low to high and back in `period` seconds; `phase` is a part of the period."""

    low: float
    high: float
    period: float = 30.0
    phase: float = 0.0


class Steps(NamedTuple):
    """Each value from its second on; before the first one, the first one."""

    times: tuple[float, ...]
    values: tuple[float, ...]
    repeat: bool = False


Series = float | Wave | Steps


class Slice(NamedTuple):
    """A MIG slice."""

    uuid: str
    profile: str
    memory_total: int
    memory_used: Series = 0.0


class SimulatedDevice(NamedTuple):
    """One GPU of the machine; None follows from the utilization."""

    index: int  # type: ignore[assignment] # a tuple has a method of this name
    uuid: str
    name: str
    model: Profile
    memory_total: int
    memory_reserved: int
    memory_used: Series
    utilization: Series
    memory_utilization: Series | None = None
    power: Series | None = None
    temperature: Series | None = None
    power_limit: float = 0.0
    compute_mode: str = "default"
    slices: tuple[Slice, ...] = ()
    missing: tuple[str, ...] = ()
    sm_clock: Series | None = None
    """MHz; like the next two None follows from the utilization."""
    memory_clock: Series | None = None
    throttle: Series | None = None
    """NVML's bits for what holds the clocks down."""
    pcie_rx: Series | None = None
    """Bytes per second, as the next three; NVLink's None means that there is no link."""
    pcie_tx: Series | None = None
    nvlink_rx: Series | None = None
    nvlink_tx: Series | None = None

    @property
    def bus_id(self) -> str:
        return f"0000{0:04X}:{0x10 + self.index:02X}:00.0"

    def watts(self, seconds: float) -> float:
        if self.power is not None:
            return value_at(self.power, seconds)
        idle = self.model.idle_power
        return idle + (self.power_limit - idle) * value_at(self.utilization, seconds) / 100

    def joules(self, seconds: float) -> float:
        if self.power is not None:
            return integral(self.power, seconds)
        idle = self.model.idle_power
        return idle * seconds + (self.power_limit - idle) * integral(self.utilization, seconds) / 100

    def celsius(self, seconds: float) -> float:
        if self.temperature is not None:
            return value_at(self.temperature, seconds)
        return 31 + self.index % 4 + 0.45 * value_at(self.utilization, seconds)


class SimulatedProcess(NamedTuple):
    """A process on a device, or on a slice of one."""

    gpu: int
    pid: int
    memory: int = NOT_AVAILABLE
    type: str = "compute"
    gpu_percent: float | None = None
    bound: bool = False
    """Listed only while a process with this id lives here."""
    slice: int | None = None


class SimulatedLease(NamedTuple):
    """Who holds a device, and when; for a rehearsal, which has no live processes."""

    gpu: int
    uid: int
    start: float
    """Seconds of the scenario."""
    end: float
    memory: int | None = None
    """Bytes of a share; None for the whole device."""
    notebook: str | None = None
    slice: int | None = None


class Fault(NamedTuple):
    """What goes wrong with calls whose name matches, on one GPU or on all."""

    call: str
    gpu: int | None = None
    code: int = 0
    latency: float = 0.0
    hang: bool = False
    after: int = 0
    """Calls that still go well."""
    times: int | None = None
    """Calls that then go wrong; None: all."""
    start: float | None = None
    end: float | None = None

    def covers(self, gpu: int | None, seconds: float) -> bool:
        """Whether it concerns this GPU at this time; the name is the caller's to match."""
        return (
            self.gpu in (None, gpu)
            and (self.start is None or seconds >= self.start)
            and (self.end is None or seconds < self.end)
        )


class Machine(NamedTuple):
    """Everything that a scenario says."""

    devices: tuple[SimulatedDevice, ...]
    processes: tuple[SimulatedProcess, ...] = ()
    faults: tuple[Fault, ...] = ()
    leases: tuple[SimulatedLease, ...] = ()
    driver: str = "580.95.05"
    cuda: str = "13.0"
    epoch: float = 0.0
    hidden_symbols: tuple[str, ...] = ()
    call_log: str | None = None

    def seconds(self) -> float:
        """Now, as the scenario counts it: since its epoch."""
        return clock.now() - self.epoch


def value_at(series: Series, seconds: float) -> float:
    """The value of a series at a time."""
    if isinstance(series, Wave):
        turn = 2 * math.pi * (seconds / series.period + series.phase)
        return series.low + (series.high - series.low) * (1 - math.cos(turn)) / 2
    if isinstance(series, Steps):
        if series.repeat:
            seconds %= series.times[-1] or 1.0
        past = [value for start, value in zip(series.times, series.values, strict=True) if start <= seconds]
        return past[-1] if past else series.values[0]
    return series


def integral(series: Series, seconds: float) -> float:
    """The integral of a series from 0 to a time, so that energy agrees with power."""
    if isinstance(series, Wave):
        turn, start = 2 * math.pi / series.period, 2 * math.pi * series.phase
        swing = (math.sin(turn * seconds + start) - math.sin(start)) / turn
        return series.low * seconds + (series.high - series.low) * (seconds - swing) / 2
    if not isinstance(series, Steps):
        return series * seconds
    if series.repeat and series.times[-1] > 0 and seconds > series.times[-1]:
        rounds, rest = divmod(seconds, series.times[-1])
        return rounds * integral(series, series.times[-1]) + integral(series, rest)
    starts = (0.0, *series.times[1:])
    ends = (*series.times[1:], math.inf)
    spans = (max(0.0, min(seconds, end) - start) for start, end in zip(starts, ends, strict=True))
    return sum(span * value for span, value in zip(spans, series.values, strict=True))


def device_uuid(profile: str, index: int, place: int | None = None) -> str:
    """The same on every machine and in every process; FNV-1a, because hashlib costs a start."""
    kind = "GPU" if place is None else "MIG"
    value = 0x6C62272E07BB014262B821756295C58D
    for byte in f"{kind}/{place}/{index}/{profile}".encode() * 2:
        value = ((value ^ byte) * 0x1000000000000000000013B) % 2**128
    digits = f"{value:032x}"
    return f"{kind}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def calls_of(fields: tuple[str, ...]) -> tuple[str, ...]:
    """Patterns of the calls that a driver without these fields does not support."""
    return tuple(pattern for field in fields for pattern in FIELDS[field])
