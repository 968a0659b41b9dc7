"""What the history is read as: frozen rows. Unknown is None, never 0; times are seconds since the epoch."""

from typing import NamedTuple

__all__ = ["LeaseSpan", "Point", "ProcessRow", "Rollup", "Sample", "Usage"]


class Sample(NamedTuple):
    """One device at one instant."""

    time: float
    gpu_percent: float | None
    memory_used_bytes: int | None
    power_watts: float | None
    temperature_celsius: float | None
    memory_percent: float | None = None
    sm_clock_mhz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    energy_joules: float | None = None
    """The device's counter, since its driver was loaded."""
    pcie_rx_bytes_per_second: float | None = None
    pcie_tx_bytes_per_second: float | None = None
    nvlink_rx_bytes_per_second: float | None = None
    nvlink_tx_bytes_per_second: float | None = None
    state: str | None = None
    """ok, lost, error or unresponsive; None in a history that did not tell."""


class ProcessRow(NamedTuple):
    """A process on a device when something about it changed, and once a minute."""

    time: float
    uuid: str
    pid: int
    uid: int | None
    user: str | None
    command: str | None
    type: str
    """compute or graphics"""
    memory_bytes: int | None
    gpu_percent: float | None
    """The mean since the row before of the same process."""
    lease: str | None
    gone: bool
    """This row says that it was no longer there."""


class LeaseSpan(NamedTuple):
    """A lease while its terms stayed the same; a change of terms ends one span and begins another."""

    id: str
    uid: int | None
    user: str | None
    uuids: tuple[str, ...]
    mode: str
    """exclusive or shared"""
    memory_bytes: int | None
    priority: str
    notebook: str | None
    since: float
    seen: float
    """When it was last found to be held."""
    until: float | None
    """None: it was held when the sampler last looked, at `seen`."""


class Point(NamedTuple):
    """One device over a part of a range: means, and the highest of utilization and memory.

    A point whose figures are all None marks the beginning of a gap.
    """

    time: float
    """The middle of the part."""
    gpu_percent: float | None
    gpu_max: float | None
    memory_used_bytes: float | None
    memory_max_bytes: int | None
    power_watts: float | None
    temperature_celsius: float | None


class Rollup(NamedTuple):
    """One device over one minute or hour."""

    time: float
    """Its beginning."""
    uuid: str
    seconds: float
    """How much of it samples really cover."""
    gpu_percent: float | None
    gpu_max: float | None
    memory_used_bytes: float | None
    memory_max_bytes: int | None
    power_watts: float | None
    temperature_max_celsius: float | None
    energy_joules: float | None
    """By the device's counter, else the integral of the power; None where neither is known."""


class Usage(NamedTuple):
    """One account on one device, summed over a range; None where nothing could be known."""

    uid: int | None
    """None: use that no lease and no visible process accounts for."""
    user: str | None
    uuid: str
    held_seconds: float
    """A live lease of this account named the device; a share counts fully."""
    used_seconds: float | None
    """The integral of the utilization (as a part of 1) over the time that is this account's."""
    idle_seconds: float | None
    """Held while the account's utilization was 0."""
    energy_joules: float | None
