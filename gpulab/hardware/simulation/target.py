"""Which GPU of the simulated machine a call is about, and what that GPU shows at this instant."""

import ctypes
from typing import Any, NamedTuple

from gpulab.hardware.simulation.machine import (
    LABEL,
    Machine,
    Series,
    SimulatedDevice,
    SimulatedProcess,
    Slice,
    value_at,
)

__all__ = ["Target", "find", "is_pointer"]

_ENERGY_ORIGIN = 1_760_000_000.0
"""When the simulated driver was loaded, if the scenario has no epoch: an instant all processes agree on."""


class Target(NamedTuple):
    """What a call is about: the machine, one GPU, or one slice of it."""

    machine: Machine
    gpu: SimulatedDevice | None = None
    place: int | None = None
    """Which slice."""

    @property
    def device(self) -> SimulatedDevice:
        assert self.gpu is not None  # noqa: S101 - calls without a GPU never ask
        return self.gpu

    @property
    def is_there(self) -> bool:
        """Whether the slice that a handle was made for is still one of the GPU's."""
        return self.gpu is not None and (self.place is None or self.place < len(self.gpu.slices))

    @property
    def part(self) -> Slice | None:
        return None if self.place is None else self.device.slices[self.place]

    @property
    def handle(self) -> int:
        return (self.device.index + 1) << 8 | (0 if self.place is None else self.place + 1)

    @property
    def uuid(self) -> str:
        return self.part.uuid if self.part else self.device.uuid

    @property
    def name(self) -> str:
        if self.part is None:
            return self.device.name
        return f"{self.device.name.removesuffix(LABEL)} MIG {self.part.profile}{LABEL}"

    def now(self, series: Series) -> float:
        return value_at(series, self.machine.seconds())

    def processes(self, kind: str | None = None) -> list[SimulatedProcess]:
        """Those on it (a sliced GPU lists its slices' too), without bound ones whose process is gone."""
        return [
            process
            for process in self.machine.processes
            if process.gpu == self.device.index
            and self.place in (None, process.slice)
            and kind in (None, process.type)
            and (not process.bound or _lives(process.pid))
        ]

    def memory(self) -> tuple[int, int, int]:
        """Total, reserved and used bytes; used grows with the processes that state theirs."""
        if self.part:
            total, reserved, base = self.part.memory_total, 0, int(self.now(self.part.memory_used))
        else:
            total, reserved = self.device.memory_total, self.device.memory_reserved
            base = int(self.now(self.device.memory_used))
            base += sum(int(self.now(part.memory_used)) for part in self.device.slices)
        held = sum(process.memory for process in self.processes() if process.memory < 2**63)
        return total, reserved, max(base, min(base + held, total - reserved))

    def percent(self) -> int:
        return round(self.now(self.device.utilization))

    def memory_percent(self) -> int:
        if self.device.memory_utilization is not None:
            return round(self.now(self.device.memory_utilization))
        return self.percent() // 2

    def joules(self) -> float:
        origin = 0.0 if self.machine.epoch else _ENERGY_ORIGIN
        return max(0.0, self.device.joules(self.machine.seconds()) - self.device.joules(origin))


def find(machine: Machine, name: str, arguments: tuple[Any, ...]) -> Target | None:
    """The GPU a call is about, from its handle, index or UUID; None if it is about none."""
    if not name.startswith("nvmlDevice") or not arguments:
        return None
    if name.startswith("nvmlDeviceGetHandleBy"):
        return _named(machine, arguments[0])
    address = ctypes.cast(arguments[0], ctypes.c_void_p).value or 0 if is_pointer(arguments[0]) else 0
    index, place = (address >> 8) - 1, (address & 0xFF) - 1
    if not 0 <= index < len(machine.devices):
        return None
    gpu = machine.devices[index]
    return Target(machine, gpu, place if place >= 0 else None)


def _named(machine: Machine, value: Any) -> Target | None:
    value = getattr(value, "value", value)
    for device in machine.devices:
        if value == device.index or value in (device.uuid.encode(), device.bus_id.encode()):
            return Target(machine, device)
        for place, part in enumerate(device.slices):
            if value == part.uuid.encode():
                return Target(machine, device, place)
    return None


def is_pointer(value: Any) -> bool:
    """Whether it is a ctypes pointer, as a handle is."""
    return isinstance(value, (ctypes.c_void_p, ctypes._Pointer))


def _lives(pid: int) -> bool:
    """A killed process holds nothing on a GPU, even while its parent has not collected it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False
