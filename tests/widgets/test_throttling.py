from __future__ import annotations

import pytest

from gpulab.hardware.devices import Device
from gpulab.widgets.throttling import brake

T4 = Device(0, "GPU-a", "Tesla T4")


@pytest.mark.parametrize(
    ("reasons", "label"),
    [
        (("sw_power_cap",), "power cap"),
        (("sw_power_cap", "hw_thermal_slowdown", "hw_slowdown"), "thermal"),
        (("hw_slowdown", "hw_power_brake_slowdown"), "power brake"),
        (("hw_slowdown",), "slowed"),
        (("applications_clocks_setting", "sync_boost", "display_clock_setting"), None),
        (("gpu_idle", "sw_power_cap"), None),
        ((), None),
        (None, None),
    ],
)
def test_the_gravest_brake_is_named_and_idleness_or_a_set_clock_is_none(
    reasons: tuple[str, ...] | None, label: str | None
) -> None:
    found = brake(T4._replace(throttle_reasons=reasons))
    assert (found and found[0]) == label
    assert found is None or found[1].endswith(".")


def test_of_a_gpu_that_does_not_answer_nothing_is_said() -> None:
    assert brake(T4._replace(throttle_reasons=("sw_power_cap",), state="unresponsive")) is None
