"""Frozen values: what the machine's GPUs are and what they are doing, at one instant.

Units stand in the names. Unknown is None, never 0. NamedTuples, because `gpulab run` pays for
every import and `dataclasses` costs more than all of this module. For the same reason modules on that way
that define NamedTuples do without `from __future__ import annotations`: typing would compile the
text of each field again.
"""

from typing import Any, NamedTuple

__all__ = [
    "DEVICE_STATES",
    "LINKS",
    "UNLISTED_FRACTION",
    "Device",
    "DriverState",
    "Memory",
    "Process",
    "Snapshot",
    "unlisted_bytes",
]

DEVICE_STATES = ("ok", "lost", "error", "unresponsive")
"""In this order histories count them: a new one goes to the end."""
LINKS = (
    "pcie_rx_bytes_per_second",
    "pcie_tx_bytes_per_second",
    "nvlink_rx_bytes_per_second",
    "nvlink_tx_bytes_per_second",
)
"""The fields of a device that are told only where somebody asked for them."""
UNLISTED_FRACTION = 0.05
"""Memory in use without a process counts as somebody's from this share of the device on."""


def unlisted_bytes(unattributed: int | None, total: int | None, *, shared_with_host: bool) -> int:
    """Memory that processes hold which the driver does not list, as with some containers; 0 if none shows.

    What the driver itself keeps is less than a twentieth, and a host's memory is no sign of GPU use.
    """
    if unattributed is None or total is None or shared_with_host:
        return 0
    return unattributed if unattributed > UNLISTED_FRACTION * total else 0


class DriverState(NamedTuple):
    """Whether NVML answers, and if not why and what to do about it."""

    state: str = "ok"
    """ok, no_library, no_driver, driver_mismatch, no_permission, unresponsive, paused or error"""
    code: int | None = None
    message: str = ""
    """One sentence with the reason and the remedy; empty when the state is ok."""
    driver: str | None = None
    cuda: str | None = None

    @property
    def ok(self) -> bool:
        return self.state == "ok"


class Memory(NamedTuple):
    """A device's memory; used + free + reserved = total where all are known."""

    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    shared_with_host: bool = False


class Process(NamedTuple):
    """A process on a device, as NVML names it (host process ids)."""

    pid: int
    user: str | None = None
    """None if the process is not ours to see: another namespace, or hidden."""
    command: str | None = None
    memory_bytes: int | None = None
    gpu_percent: float | None = None
    type: str = "compute"
    """compute or graphics"""
    uid: int | None = None
    """The account's number; told also where its name is not."""


class Device(NamedTuple):
    """A GPU, or a MIG slice of one."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a device
    """NVML's index; a MIG slice has its parent's."""
    uuid: str | None = None
    """None only if the device cannot even name itself."""
    name: str | None = None
    kind: str = "gpu"
    """gpu or mig"""
    parent_uuid: str | None = None
    state: str = "ok"
    """ok, lost, error or unresponsive"""
    message: str = ""
    sampled_at: float | None = None
    """Seconds since the epoch."""
    memory: Memory = Memory()
    gpu_percent: float | None = None
    """Share of the last sample period with a kernel running; not occupancy."""
    memory_percent: float | None = None
    """Share of the period in which memory was read or written; not memory in use."""
    temperature_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    """Since the driver was loaded."""
    compute_mode: str | None = None
    """default, exclusive_process or prohibited"""
    processes: tuple[Process, ...] | None = None
    """None if they could not be listed; that is not the same as none."""
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """What holds the clocks down, in NVML's words (sw_power_cap, ...); () if nothing does."""
    pcie_rx_bytes_per_second: float | None = None
    """To the device; this and the next three only where they were asked for."""
    pcie_tx_bytes_per_second: float | None = None
    nvlink_rx_bytes_per_second: float | None = None
    nvlink_tx_bytes_per_second: float | None = None
    detailed_at: float | None = None
    """Seconds since the epoch when temperature, clocks and the like were read; they are asked more seldom."""

    def __repr__(self) -> str:
        """One line for people; `to_dict` has everything."""
        used, total = (
            "n/a" if size is None else f"{size / 2**30:.1f}"
            for size in (self.memory.used_bytes, self.memory.total_bytes)
        )
        busy = "n/a" if self.gpu_percent is None else f"{self.gpu_percent:.0f} %"
        state = "" if self.state == "ok" else f", {self.state}"
        kind = "GPU" if self.kind == "gpu" else "MIG slice of GPU"
        name = self.name or "unnamed"
        return f"<{kind} {self.index}, {name}: busy {busy}, memory {used} of {total} GiB{state}>"

    @property
    def unattributed_bytes(self) -> int | None:
        """Memory in use that no listed process accounts for; None if anything is unknown."""
        if self.processes is None or self.memory.used_bytes is None:
            return None
        used = 0
        for process in self.processes:
            if process.memory_bytes is None:
                return None
            used += process.memory_bytes
        return max(0, self.memory.used_bytes - used)

    @property
    def unlisted_bytes(self) -> int:
        """See the function of this name."""
        memory = self.memory
        return unlisted_bytes(
            self.unattributed_bytes, memory.total_bytes, shared_with_host=memory.shared_with_host
        )

    def to_dict(self) -> dict[str, Any]:
        """The entry of `gpulab.status/1`, less what only leases and rules know."""
        return {
            "index": self.index,
            "uuid": self.uuid,
            "name": self.name,
            "kind": self.kind,
            "parent_uuid": self.parent_uuid,
            "state": self.state,
            "message": self.message,
            "sampled_at": self.sampled_at,
            "memory": self.memory._asdict(),
            "utilization": {"gpu_percent": self.gpu_percent, "memory_percent": self.memory_percent},
            "temperature_celsius": self.temperature_celsius,
            "power_watts": self.power_watts,
            "power_limit_watts": self.power_limit_watts,
            "energy_joules": self.energy_joules,
            "compute_mode": self.compute_mode,
            "processes": None if self.processes is None else [p._asdict() for p in self.processes],
            "unattributed_bytes": self.unattributed_bytes,
            "clocks": {"sm_mhz": self.sm_clock_mhz, "memory_mhz": self.memory_clock_mhz},
            "throttle_reasons": None if self.throttle_reasons is None else list(self.throttle_reasons),
            "pcie": _link(self.pcie_rx_bytes_per_second, self.pcie_tx_bytes_per_second),
            "nvlink": _link(self.nvlink_rx_bytes_per_second, self.nvlink_tx_bytes_per_second),
            "detailed_at": self.detailed_at,
        }

    @classmethod
    def from_dict(cls, entry: dict[str, Any]) -> "Device":
        """The inverse of `to_dict`; raises KeyError, TypeError or ValueError for another shape."""
        known = {key: entry[key] for key in cls._fields if key in entry}
        processes = entry["processes"]
        known["memory"] = _known(Memory, entry["memory"])
        known["gpu_percent"] = entry["utilization"]["gpu_percent"]
        known["memory_percent"] = entry["utilization"]["memory_percent"]
        known["processes"] = None if processes is None else tuple(_known(Process, p) for p in processes)
        reasons = entry.get("throttle_reasons")  # this and what follows is new: an older sampler writes none
        known["throttle_reasons"] = None if reasons is None else tuple(reasons)
        clocks = entry.get("clocks") or {}
        known["sm_clock_mhz"], known["memory_clock_mhz"] = clocks.get("sm_mhz"), clocks.get("memory_mhz")
        for link in ("pcie", "nvlink"):
            for way in ("rx", "tx"):
                name = f"{way}_bytes_per_second"
                known[f"{link}_{name}"] = (entry.get(link) or {}).get(name)
        return cls(**known)


def _known(kind: Any, entry: dict[str, Any]) -> Any:
    """What this version knows of an entry: a later one's sampler may tell more."""
    return kind(**{key: entry[key] for key in kind._fields if key in entry})


def _link(rx: float | None, tx: float | None) -> dict[str, float | None]:
    return {"rx_bytes_per_second": rx, "tx_bytes_per_second": tx}


class Snapshot(NamedTuple):
    """Every device at one instant, or the reason why there is none."""

    time: float
    """Seconds since the epoch."""
    driver: DriverState
    devices: tuple[Device, ...] = ()
    simulated: bool = False
    source: str = "nvml"
    """nvml (asked just now) or sampler (read from its record)"""

    def __repr__(self) -> str:
        """A line, and one for each device."""
        simulated = " of a simulated machine" if self.simulated else ""
        told = f"{len(self.devices)} devices" if self.driver.ok else self.driver.message or self.driver.state
        head = f"<Snapshot{simulated} at {self.time:.3f}, from {self.source}: {told}>"
        return "\n  ".join([head, *map(repr, self.devices)])

    def device(self, uuid: str) -> "Device | None":
        """The device of this UUID, or None."""
        return next((device for device in self.devices if device.uuid == uuid), None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "time": self.time,
            "simulated": self.simulated,
            "source": self.source,
            "nvml": self.driver._asdict(),
            "devices": [device.to_dict() for device in self.devices],
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Snapshot":
        """The inverse of `to_dict`; raises KeyError, TypeError or ValueError for another shape."""
        return cls(
            time=float(record["time"]),
            driver=_known(DriverState, record["nvml"]),
            devices=tuple(Device.from_dict(entry) for entry in record["devices"]),
            simulated=bool(record["simulated"]),
            source=str(record["source"]),
        )
