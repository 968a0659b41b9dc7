"""The frozen parts of a result. Each number says between which bounds it can be; see `decoding`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from gpulab.compare.results.decoding import Bounds

__all__ = [
    "BackendRecord",
    "Conditions",
    "Count",
    "Machine",
    "Measurement",
    "Parity",
    "Part",
    "Sample",
    "Seconds",
    "Size",
    "SizeRun",
    "Strangers",
    "Threads",
]

Seconds = Annotated[float, Bounds(1e-9, 1e9)]
"""From a clock's finest step to thirty years, so that no ratio of two of them overflows."""
Part = Annotated[float, Bounds(0.0, 1e9)]
"""Seconds of a part of a repeat, or a share of its time; a part can take none."""
Size = Annotated[int, Bounds(1, 10**15)]
Threads = Annotated[int, Bounds(1, 10**6)]
Count = Annotated[int, Bounds(0, 10**18)]


@dataclass(frozen=True)
class Sample:
    """One timed repeat. Columns that a side does not have are None."""

    end_to_end_seconds: Seconds
    compute_seconds: Part
    host_to_device_seconds: Part | None = None
    device_to_host_seconds: Part | None = None
    stalled_share: Part | None = None
    """Share of the repeat in which some task waited for a CPU; None where the kernel does not say."""
    disturbance: str = ""
    """Why the GPU was disturbed meanwhile (braked, used by another process); empty if nothing is known."""


@dataclass(frozen=True)
class Measurement:
    """One backend at one size."""

    backend: str
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class Parity:
    """Whether two backends gave the same result; filled in by the workload's check."""

    state: Literal["same", "tie", "different"]
    """tie: different only where rounding decides."""
    message: str
    score: float | None = None
    """The workload's summary of agreement; 1.0 is perfect."""
    reference: str = ""
    candidate: str = ""


@dataclass(frozen=True)
class Strangers:
    """How many compute processes of others the driver listed on a GPU, around the repeats on it."""

    before: Count | None
    after: Count | None
    reason: str = ""
    """Why a number is not known."""


@dataclass(frozen=True)
class Conditions:
    """What the driver said of a GPU while one backend computed on it; None where it said nothing."""

    sm_clock_mhz: float | None = None
    """The median."""
    throttle_reasons: tuple[str, ...] = ()
    """What braked it at any time; see `gpulab.hardware.throttling.REASONS`."""
    memory_bytes: Count | None = None
    """The most that the backend's own process held."""
    energy_joules: Part | None = None
    """Of one call, transfers included."""
    reason: str = ""
    """Why the energy is not known."""


@dataclass(frozen=True)
class SizeRun:
    """All that is known about one size."""

    size: Size
    state: Literal["measured", "not_run", "interrupted"]
    reason: str = ""
    """Why it was not run, or not to the end."""
    arrays: dict[str, str] = field(default_factory=dict)
    """Name of each array of the data: its dtype and shape."""
    parameters: dict[str, float] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    memory_bytes: Count | None = None
    """Estimated peak of the hungriest backend."""
    best_cpu: str | None = None
    race: dict[str, tuple[Seconds, ...]] = field(default_factory=dict)
    """Seconds of the short race that found the best CPU backend."""
    race_date: str = ""
    """When that race was run, if it was not now but its outcome was remembered."""
    peers: dict[str, str] = field(default_factory=dict)
    """For each GPU backend: the fastest CPU backend of the same interface, which was measured beside it."""
    measurements: tuple[Measurement, ...] = ()
    parity: tuple[Parity, ...] = ()
    placement: dict[str, str] = field(default_factory=dict)
    """For each GPU backend: empty if it is proved that it ran on the GPU, else why it is not."""
    strangers: dict[str, Strangers] = field(default_factory=dict)
    """For each GPU backend: who else computed on its GPU."""
    conditions: dict[str, Conditions] = field(default_factory=dict)
    """For each GPU backend: its GPU's clock, brakes and energy."""
    fell_back: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For each GPU backend that can fall back: what ran on the CPU instead, as its profiler says."""
    peak_bytes: dict[str, Count] = field(default_factory=dict)
    """For each backend: the most host memory that its process held in the first call at this size."""
    failures: dict[str, str] = field(default_factory=dict)
    """Backends that did not get through this size, and why."""


@dataclass(frozen=True)
class BackendRecord:
    """A backend, whether it could run, and what starting it cost."""

    name: str
    title: str
    side: Literal["cpu", "gpu"]
    library: str
    state: Literal["ready", "unavailable", "failed"]
    reason: str = ""
    interface: str = ""
    """The library whose interface its user writes against."""
    threads: Threads | None = None
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    import_seconds: Seconds | None = None
    first_call_seconds: Seconds | None = None
    """At the pilot size: context, compilation and all else that only the first call pays."""
    warm_call_seconds: Seconds | None = None
    """The same call again."""
    pilot_size: Size | None = None


@dataclass(frozen=True)
class Machine:
    """Where it was measured, without the host's name."""

    cpu: str | None
    usable_cores: Count | None
    """Those this process may run on."""
    core_quota: float | None
    """Cores' worth of time the container allows; None without a quota."""
    memory_bytes: Count | None
    platform: str
    python: str
    gpu: str | None = None
    driver: str | None = None
    cuda: str | None = None
    gpu_reason: str = ""
    """Why there is no GPU side."""
    simulated: bool = False
    pressure: str | None = None
    """The file that told how long tasks waited for a CPU: the container's, else the machine's."""
