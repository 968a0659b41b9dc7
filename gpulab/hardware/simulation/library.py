"""The simulated NVML library: an object that pynvml takes for the loaded libnvidia-ml.

Each attribute is a callable with the C function's arguments (ctypes values and references) and its
return code, so every Python client of pynvml runs on it unmodified.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import time
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any

from gpulab.hardware.scenario import Watch
from gpulab.hardware.simulation import calls, values  # noqa: F401 - they fill the table
from gpulab.hardware.simulation.machine import Fault, Machine
from gpulab.hardware.simulation.processes import has_wide_processes
from gpulab.hardware.simulation.registry import CALLS
from gpulab.hardware.simulation.target import Target, find

__all__ = ["Library"]

_OK, _UNINITIALIZED, _NOT_SUPPORTED = 0, 1, 3
_POLL_SECONDS = 0.05
_FREE = ("nvmlErrorString", "nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags")
"""Calls that need no initialized library."""


class Library:
    """One process's view of the machine that `text` names; raises ScenarioError if there is none."""

    def __init__(self, text: str, is_symbol: Callable[[str], bool] | None = None) -> None:
        """`is_symbol` knows NVML's names: what is not simulated is there, and not supported."""
        self.text = text
        self._is_symbol = is_symbol
        self._watch = Watch(text)
        self._lock = allocate_lock()
        self._users = 0
        self._pid = 0
        self._counted: tuple[Machine, dict[int, int]] | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        machine = self._watch.machine()
        if _matches(name, machine.hidden_symbols) or not self._exports(name, machine):
            raise AttributeError(name)
        return functools.partial(self._call, name)

    def _exports(self, name: str, machine: Machine) -> bool:
        if name == "nvmlDeviceGetRunningProcessDetailList":
            return not has_wide_processes(machine.driver)
        return (
            name in CALLS
            or name in _FREE
            or name == "nvmlShutdown"
            or bool(self._is_symbol and self._is_symbol(name))
        )

    def _call(self, name: str, *arguments: Any) -> Any:
        machine = self._watch.machine()
        gpu = find(machine, name, arguments)
        index = None if gpu is None else gpu.device.index
        if machine.call_log:
            _log(machine.call_log, f"{name} {'-' if index is None else index} {os.getpid()}\n")
        if machine.faults:
            code = self._fail(name, index, machine)
            if code:
                return code
            machine = self._watch.machine()  # the wait may have been long
            gpu = find(machine, name, arguments)
        if name in _FREE or name == "nvmlShutdown":
            return self._state(name)
        if not self._users or self._pid != os.getpid():
            return _UNINITIALIZED
        function = CALLS.get(name)
        if function is None or (gpu is not None and _matches(name, gpu.device.missing)):
            return _NOT_SUPPORTED
        return function(gpu or Target(machine), *arguments)

    def _state(self, name: str) -> Any:
        if name == "nvmlErrorString":
            return b"Simulated error"
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._users = os.getpid(), 0
            if name == "nvmlShutdown":
                if not self._users:
                    return _UNINITIALIZED
                self._users -= 1
            else:
                self._users += 1
        return _OK

    def _fail(self, name: str, gpu: int | None, machine: Machine) -> int:
        """Wait as the faults say, and return the code of the first that has one."""
        code = 0
        for place, fault in enumerate(machine.faults):
            if not _concerns(fault, name, gpu, machine) or not self._is_due(place, fault, machine):
                continue
            if fault.latency:
                time.sleep(fault.latency)
            while fault.hang and _hangs(name, gpu, self._watch.machine()):
                time.sleep(_POLL_SECONDS)
            code = code or (0 if fault.hang else fault.code)
        return code

    def _is_due(self, place: int, fault: Fault, machine: Machine) -> bool:
        """Count this call against the fault's `after` and `times`; a changed scenario counts anew."""
        with self._lock:
            if self._counted is None or self._counted[0] is not machine:
                self._counted = (machine, {})
            number = self._counted[1].get(place, 0)
            self._counted[1][place] = number + 1
        return number >= fault.after and (fault.times is None or number < fault.after + fault.times)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _concerns(fault: Fault, name: str, gpu: int | None, machine: Machine) -> bool:
    return fnmatch.fnmatchcase(name, fault.call) and fault.covers(gpu, machine.seconds())


def _hangs(name: str, gpu: int | None, machine: Machine) -> bool:
    return any(fault.hang and _concerns(fault, name, gpu, machine) for fault in machine.faults)


def _log(path: str, line: str) -> None:
    """One write to a file opened for appending: lines of several processes do not mix."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
