"""Why NVML is off, in one sentence each: the reason, and what to do."""

from __future__ import annotations

from typing import Any

from gpulab.errors import MissingDependencyError, ScenarioError
from gpulab.hardware.devices import DriverState

__all__ = ["WRONG_PACKAGE", "of_error", "unresponsive", "working"]

_STATES = {4: "no_permission", 9: "no_driver", 10: "unresponsive", 12: "no_library", 18: "driver_mismatch"}
_MESSAGES = {
    4: "This account may not open the GPU's device files; have it added to the group of /dev/nvidia*, "
    "usually `video`.",
    9: "The NVIDIA driver is installed but not loaded; run `sudo modprobe nvidia`, or reboot.",
    10: "The NVIDIA driver does not answer in time (error 10); if that stays so, reboot the machine.",
    12: "NVIDIA's library libnvidia-ml is not on this machine, so gpulab works without a GPU; if there "
    "is one, install its driver, or start the container with access to it.",
    13: "The NVIDIA driver is too old for the installed nvidia-ml-py (error 13); upgrade the driver.",
    15: "The NVIDIA driver has lost its GPU (error 15): it has fallen off the bus; reboot the machine.",
    18: "The NVIDIA driver was upgraded while the old one is still loaded; what runs keeps its GPU, but "
    "reboot or reload the driver's kernel modules before anything new starts.",
    999: "The NVIDIA driver reports an unknown error (999); in a container, restart the container (a reload "
    "of systemd took its GPU away), else reload the driver or reboot.",
}
_REINSTALL = "run `pip uninstall pynvml nvidia-ml-py`, then `pip install nvidia-ml-py`."
WRONG_PACKAGE = f"The Python module pynvml is not the one of nvidia-ml-py; {_REINSTALL}"


def working(driver: str | None, cuda: int | None) -> DriverState:
    """NVML answers; `cuda` as it counts: 12080 for 12.8."""
    version = None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"
    return DriverState(driver=driver, cuda=version)


def unresponsive(seconds: float) -> DriverState:
    """NVML has not answered for so long."""
    return DriverState(
        "unresponsive",
        message=f"The NVIDIA driver did not answer within {seconds:g} s; gpulab goes on without it, "
        "and if `nvidia-smi` hangs too, reboot the machine.",
    )


def of_error(error: Exception) -> DriverState:
    """What an exception says that came up while NVML was started."""
    if isinstance(error, (ScenarioError, MissingDependencyError)):
        return DriverState("error", message=str(error))
    if isinstance(error, ImportError):
        return DriverState(
            "error",
            message="The Python package nvidia-ml-py cannot be loaded, so no GPU can be seen; "
            "install it with `pip install nvidia-ml-py`.",
        )
    code: Any = getattr(error, "value", None)
    if isinstance(code, int):
        other = f"NVML failed with error {code} ({error}); see whether `nvidia-smi` works, else reboot."
        return DriverState(_STATES.get(code, "error"), code, _MESSAGES.get(code, other))
    return DriverState(
        "error", message=f"NVML could not be started through nvidia-ml-py ({error}); {_REINSTALL}"
    )
