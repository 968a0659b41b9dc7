"""Why NVML is off, in one sentence each: the reason, and what to do."""

from __future__ import annotations

from gpulab.errors import GpulabError
from gpulab.hardware.devices import DriverState

__all__ = ["ERRORS", "NvmlError", "broken", "denied", "of_error", "paused", "unresponsive", "working"]

ERRORS = {
    1: "not initialized",
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    6: "not found",
    7: "insufficient size",
    8: "insufficient external power",
    9: "driver not loaded",
    10: "timeout",
    11: "interrupt request issue",
    12: "library not found",
    13: "function not found",
    14: "corrupted infoROM",
    15: "GPU is lost",
    16: "GPU requires a reset",
    17: "blocked by the operating system",
    18: "driver and library versions differ",
    19: "in use by another client",
    20: "out of memory",
    21: "no data",
    23: "insufficient resources",
    25: "version of an argument not known",
    26: "deprecated",
    27: "not ready",
    28: "GPU not found",
    29: "invalid state",
    999: "unknown error",
}
"""NVML's codes in words."""
_STATES = {4: "no_permission", 9: "no_driver", 10: "unresponsive", 12: "no_library", 18: "driver_mismatch"}
_MESSAGES = {
    4: "This account may not open the GPU's device files; have it added to the group of /dev/nvidia*, "
    "usually `video`.",
    9: "The NVIDIA driver is installed but not loaded; run `sudo modprobe nvidia`, or reboot.",
    10: "The NVIDIA driver does not answer in time (error 10); if that stays so, reboot the machine.",
    12: "NVIDIA's library libnvidia-ml is not on this machine, so there is no GPU to use; if it has one, "
    "install its driver, or start the container with access to it.",
    13: "The NVIDIA driver is too old for gpulab (error 13); upgrade the driver.",
    15: "The NVIDIA driver has lost its GPU (error 15): it has fallen off the bus; reboot the machine.",
    18: "The NVIDIA driver was upgraded while the old one is still loaded; what runs keeps its GPU, but "
    "reboot or reload the driver's kernel modules before anything new starts.",
    999: "The NVIDIA driver reports an unknown error (999); in a container, restart the container (a reload "
    "of systemd took its GPU away), else reload the driver or reboot.",
}


class NvmlError(Exception):
    """A call failed with this code."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"error {code}, {ERRORS.get(code, 'a code that is not documented')}")


def working(driver: str | None, cuda: int | None) -> DriverState:
    """NVML answers; `cuda` as it counts: 12080 for 12.8."""
    version = None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"
    return DriverState(driver=driver, cuda=version)


def unresponsive(seconds: float) -> DriverState:
    """NVML has not answered for so long."""
    return DriverState(
        "unresponsive",
        message=f"The NVIDIA driver did not answer within {round(seconds, 1):g} s; gpulab goes on without "
        "it, and if `nvidia-smi` hangs too, reboot the machine.",
    )


def paused(sentence: str) -> DriverState:
    """Nobody asks NVML, because somebody asked for that."""
    return DriverState("paused", message=sentence)


def denied(index: int) -> str:
    """Why a GPU is none for this process, though NVML counts it."""
    return (
        f"GPU {index} may not be opened by this account or job (error 4): a scheduler keeps it for "
        "others, or the account is not in the group of /dev/nvidia*, usually `video`."
    )


def broken(error: Exception | None) -> DriverState:
    """Not the driver: gpulab itself could not ask it."""
    return DriverState(
        "error",
        message=f"gpulab could not ask the NVIDIA driver ({error!r}); run `gpulab doctor` to see more.",
    )


def of_error(error: NvmlError | GpulabError) -> DriverState:
    """What it means that NVML could not be started."""
    if not isinstance(error, NvmlError):
        return DriverState("error", message=str(error))
    other = f"NVML cannot be started ({error}); see whether `nvidia-smi` works, else reboot."
    return DriverState(_STATES.get(error.code, "error"), error.code, _MESSAGES.get(error.code, other))
