"""The description of a simulated machine, NxPROFILE or a JSON file: read, checked, read again on change."""

from __future__ import annotations

import contextlib
import os
from _thread import allocate_lock

from gpulab.errors import ScenarioError
from gpulab.hardware.simulation.machine import (
    LABEL,
    MAX_DEVICES,
    Machine,
    SimulatedDevice,
    Wave,
    calls_of,
    device_uuid,
)
from gpulab.hardware.simulation.profiles import PROFILES, Profile

__all__ = ["Watch", "load"]


def load(text: str) -> Machine:
    """Read the machine that `text` names: NxPROFILE such as 8xh100, or the path of a JSON file.

    Raises ScenarioError, one sentence with the key and the value that are wrong.

    Notes
    -----
    The file is one object; every key may be left out, and an unknown one is an error.

    driver, cuda, epoch
        Versions as texts; the second since 1970 from which the file's seconds count (default 0).
    devices
        List of objects: profile (t4, l4, l40s, a100, h100, h200, gb10), count, uuid, name,
        memory_total, memory_reserved, memory_used, utilization, memory_utilization, power (watts),
        power_limit, temperature, sm_clock and memory_clock (MHz), pcie_rx, pcie_tx, nvlink_rx and
        nvlink_tx (bytes per second), throttle (list of NVML's reasons; its steps have lists as values),
        compute_mode, missing (names of fields that are not supported), timeline (the moving ones of
        these), mig (objects with profile, uuid, memory_total, memory_used). Moving ones are a number,
        {"wave": {low, high, period, phase}} or
        {"steps": [[second, value], ...], "repeat": true}, which then lasts until the last second.
        Sizes are numbers or texts such as 8GiB.
    processes
        Objects: gpu (index, or UUID also of a slice), pid, memory (null: not told), type (compute,
        graphics), gpu_percent, bound (listed only while the process lives). Their memory counts as used.
    faults
        Objects: call (pattern), gpu (null: any), code, latency (seconds), hang (until the file no
        longer says so), after and times (calls), from and until (seconds).
    leases
        Objects: gpu, uid, from and until (seconds), memory (null: the whole device), notebook. Who holds
        what in a rehearsal (gpulab.telemetry.rehearsal); elsewhere only live processes hold leases.
    hidden_symbols, call_log
        Patterns of functions that this driver lacks; a file for one line a call: name, GPU, pid.
    """
    count, cross, profile = text.partition("x")
    if cross and count.isdecimal() and profile.isalnum():
        return _uniform(text, int(count), profile)
    from gpulab.hardware.simulation.parsing import read_file  # only where there is a file

    return read_file(text)


class Watch:
    """A scenario that follows its file; while that cannot be read, the last good one holds."""

    def __init__(self, text: str) -> None:
        """Raises ScenarioError if it cannot be read now."""
        self.text = text
        self._lock = allocate_lock()
        self._stamp = self._look()
        self._machine = load(text)
        self._is_fixed = self._stamp is None

    def machine(self) -> Machine:
        """The machine as the scenario describes it now."""
        if self._is_fixed:
            return self._machine
        stamp = self._look()
        if stamp != self._stamp and stamp is not None:
            with self._lock:
                self._stamp = stamp
                with contextlib.suppress(ScenarioError):  # half written, or wrong: all stays as it was
                    self._machine = load(self.text)
        return self._machine

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.text)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _uniform(text: str, count: int, profile: str) -> Machine:
    """N equal GPUs, idle and without processes, that move a little: what a workshop starts with."""
    model = PROFILES.get(profile)
    if model is None:
        raise ScenarioError(
            f"{text!r} is not a simulated machine: there is no profile {profile!r}; "
            f"the profiles are {', '.join(PROFILES)}."
        )
    if not 1 <= count <= MAX_DEVICES:
        raise ScenarioError(
            f"{text!r} is not a simulated machine: it must have 1 to {MAX_DEVICES} GPUs, as in 8x{profile}."
        )
    return Machine(devices=tuple(_resting(profile, model, index, count) for index in range(count)))


def _resting(profile: str, model: Profile, index: int, count: int) -> SimulatedDevice:
    level = 22 * max(0, index - count // 4) / max(1, count - 1)  # the first ones rest; all can be leased
    phase = (index * 0.382) % 1
    return SimulatedDevice(
        index=index,
        uuid=device_uuid(profile, index),
        name=model.name + LABEL,
        model=model,
        memory_total=model.memory_mib * 2**20,
        memory_reserved=model.reserved_mib * 2**20,
        memory_used=Wave((20 + 8 * level) * 2**20, (24 + 9 * level) * 2**20, 45.0, phase),
        utilization=Wave(level, level + 2 + 0.4 * level, 20.0 + 3 * index, phase),
        power_limit=model.power_limit,
        missing=calls_of(model.missing),
    )
