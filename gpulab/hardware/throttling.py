"""What slows a GPU down, in one or two words, and in a sentence for whoever asks."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["REASONS", "bits_of", "brake_of", "reasons_of"]

REASONS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
)
"""NVML's reasons why clocks are held down (nvml.h, nvmlClocksEventReason...), from bit 0 on.

Histories hold the same bits."""

_BRAKES = {
    "hw_power_brake_slowdown": ("power brake", "The server's power supply holds it back."),
    "hw_thermal_slowdown": ("thermal", "It is too hot, and its hardware slows it down: look at its cooling."),
    "sw_thermal_slowdown": ("thermal", "It is near its limit of temperature, and the driver slows it down."),
    "sw_power_cap": ("power cap", "It would run faster, but draws all the power that it may."),
    "hw_slowdown": ("slowed", "Its hardware slows it down, by power or by temperature."),
}
"""The graver first. Clocks that somebody set, and idleness, are no brakes."""


def reasons_of(bits: int) -> tuple[str, ...]:
    """The names of those bits that are known."""
    return tuple(name for place, name in enumerate(REASONS) if bits >> place & 1)


def bits_of(names: Collection[str]) -> int:
    """The bits of those names that are known."""
    return sum(1 << place for place, name in enumerate(REASONS) if name in names)


def brake_of(reasons: Collection[str] | None) -> tuple[str, str] | None:
    """The gravest of NVML's reasons why a device runs slower than it could; None if none is known."""
    if not reasons or "gpu_idle" in reasons:
        return None
    return next((words for reason, words in _BRAKES.items() if reason in reasons), None)
