"""Known GPU models for the simulated machine: what NVML says of them while they idle."""

from typing import NamedTuple

__all__ = ["PROFILES", "Profile"]


class Profile(NamedTuple):
    """A model's fixed properties."""

    name: str
    memory_mib: int
    reserved_mib: int
    power_limit: float
    """Watts."""
    idle_power: float
    capability: tuple[int, int]
    architecture: int
    """NVML's number of the architecture."""
    mig: bool = False
    """Whether it can be sliced."""
    missing: tuple[str, ...] = ()
    """Fields of which its driver says "not supported"."""


PROFILES = {
    "t4": Profile("Tesla T4", 15360, 447, 70, 9, (7, 5), 6),
    "l4": Profile("NVIDIA L4", 23034, 470, 72, 12, (8, 9), 8, missing=("fan",)),
    "l40s": Profile("NVIDIA L40S", 46068, 680, 350, 30, (8, 9), 8, missing=("fan",)),
    "a100": Profile("NVIDIA A100-SXM4-80GB", 81920, 640, 400, 55, (8, 0), 7, True, ("fan",)),
    "h100": Profile("NVIDIA H100 80GB HBM3", 81559, 551, 700, 70, (9, 0), 9, True, ("fan",)),
    "h200": Profile("NVIDIA H200", 143771, 600, 700, 75, (9, 0), 9, True, ("fan",)),
    "gb10": Profile(
        "NVIDIA GB10", 122502, 0, 140, 5, (12, 1), 10, missing=("memory", "fan", "power_limit", "ecc")
    ),
}
