"""In which order CUDA numbers the GPUs: asked of libcuda in a child, so that it never starts in here."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys

from gpulab import config

__all__ = ["cuda_order"]

_TIMEOUT_SECONDS = 20.0
"""CUDA's start takes seconds where the driver is not kept loaded."""
_CHILD = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, device, uuid = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
    raise SystemExit(1)
for number in range(count.value):
    if cuda.cuDeviceGet(ctypes.byref(device), number) or cuda.cuDeviceGetUuid(ctypes.byref(uuid), device):
        raise SystemExit(1)
    print(bytes(uuid).hex())
"""


@functools.cache
def cuda_order(device_order: str | None) -> tuple[str, ...]:
    """The digits of each GPU's UUID as CUDA numbers them without a mask; empty if CUDA does not say.

    `device_order` is CUDA_DEVICE_ORDER of the process whose mask is read. The answer is remembered:
    the order changes only with the machine. Blocks for as long as CUDA takes to start.
    """
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CHILD],
            env=_environment(device_order),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return ()
    try:
        output = child.communicate(timeout=_TIMEOUT_SECONDS)[0]
    except subprocess.TimeoutExpired:
        _abandon(child)
        return ()
    return tuple(output.decode().split()) if child.returncode == 0 else ()


def _abandon(child: subprocess.Popen[bytes]) -> None:
    """Kill it, and do not wait for what a hanging driver may hold."""
    child.kill()
    if child.stdout is not None:
        child.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(0.2)


def _environment(device_order: str | None) -> dict[str, str]:
    """The same as for the process that is asked about, less the mask, under which numbers are others."""
    environment = config.inherited()
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    environment.pop("CUDA_DEVICE_ORDER", None)
    return environment if device_order is None else {**environment, "CUDA_DEVICE_ORDER": device_order}
