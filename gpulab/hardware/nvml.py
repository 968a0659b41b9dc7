"""The one door to NVML: a snapshot of all GPUs, or the reason why there is none; a driver never raises here.

Every call runs in a thread that nobody has to wait for, because a driver that hangs does so in the kernel,
where no signal reaches: what does not answer in time is named "unresponsive", and the rest is told.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from _thread import allocate_lock
from collections.abc import Callable
from typing import TypeVar

from gpulab import config
from gpulab.config import Settings
from gpulab.errors import MissingDependencyError, RequestError, ScenarioError
from gpulab.hardware import pausing, states
from gpulab.hardware.asking import Asking, Terms
from gpulab.hardware.binding import Binding
from gpulab.hardware.devices import Device, DriverState, Snapshot
from gpulab.hardware.guarded import Guarded, in_turn
from gpulab.hardware.owners import sees_host_processes
from gpulab.hardware.reading import Reading
from gpulab.hardware.states import NvmlError
from gpulab.hardware.update import Update

__all__ = ["is_hanging", "shutdown", "snapshot"]

_DETAILS = ("full", "choice", "fast")
_RETRY_SECONDS = 1.0
_SHUTDOWN_SECONDS = 2.0
_PATIENCE_SECONDS = 0.01
"""What a GPU may take before the next ones are asked beside it; most take less than a millisecond."""
T = TypeVar("T")


def snapshot(
    *, detail: str = "full", links: bool = False, timeout: float = 5.0, settings: Settings | None = None
) -> Snapshot:
    """Look at every GPU of this machine now.

    Parameters
    ----------
    detail
        "full"; "choice": only what choosing a GPU needs, at most 9 NVML calls per GPU, without
        temperature, power, energy, graphics processes and shares of processes; or "fast": at most 7
        calls per GPU for memory, utilization, power, energy and compute processes, the rest from the last
        full look of this process (`detailed_at` says when), which the first one is.
    links
        Also the rates of PCIe and NVLink, and with "fast" temperature, clocks, what holds them down, and
        shares of processes, too. On real hardware each PCIe counter takes 20 ms.
    timeout
        Seconds after which a GPU, or the whole driver, counts as unresponsive.
    settings
        Default: those of this process.

    Returns
    -------
    Snapshot
        Devices in NVML's order, each MIG slice after its GPU. Without a usable driver there are no
        devices, and `snapshot.driver` says why and what to do. No state of the hardware raises.

    Raises
    ------
    RequestError, ConfigError
        There is no such detail; a setting cannot be read.
    """
    if detail not in _DETAILS:
        raise RequestError(f"detail is {detail!r}; it must be one of {', '.join(_DETAILS)}.")
    settings = config.load() if settings is None else settings
    deadline = time.monotonic() + timeout
    door = _door_to(settings.simulate)
    if not door.lock.acquire(timeout=timeout):  # another thread's snapshot, which waits for a driver
        return _snapshot(settings, states.unresponsive(timeout))
    try:
        sentence = pausing.paused(settings)
        if sentence is not None:
            door.let_go()
            return _snapshot(settings, states.paused(sentence))
        state, devices = door.look(detail, links=links, deadline=deadline)
    finally:
        door.lock.release()
    return _snapshot(settings, state, devices)


def shutdown() -> None:
    """Let go of NVML, so that a GPU can be reset; the next snapshot takes it up again."""
    _door.close()


def is_hanging() -> bool:
    """Whether a call into the driver has not returned yet, so that this process had better end at once."""
    return _door.is_hanging()


def _snapshot(settings: Settings, state: DriverState, devices: tuple[Device, ...] = ()) -> Snapshot:
    return Snapshot(time.time(), state, devices, simulated=settings.simulate is not None)


class _Door:
    """NVML in one process, for one machine: the real one, or a simulated one."""

    def __init__(self, simulate: str | None) -> None:
        self.pid = os.getpid()
        self.simulate = simulate
        self.lock = allocate_lock()
        self._loaded: Binding | None = None
        self._nvml: Binding | None = None
        """The loaded library while it is started."""
        self._state: DriverState | None = None
        self._failed_at = -math.inf
        self._stale = False
        self._opening: Guarded | None = None
        self._closing: Guarded | None = None
        self._open_times = 0
        """How often NVML was started and not ended yet: twice if one of its calls hung in between."""
        self._asked: dict[int, Guarded] = {}
        self._known: dict[int, tuple[Device, ...]] = {}
        self._whole: dict[int, Asking] = {}
        """The GPUs whose handles and slow values hold for a fast look."""
        self._count = 0
        self._counters: dict[int, dict[str, tuple[float, int]]] = {}
        self._energies: dict[int, float] = {}

    def look(self, detail: str, *, links: bool, deadline: float) -> tuple[DriverState, tuple[Device, ...]]:
        """The state of the driver, and its devices; the caller holds the lock."""
        if self._state is not None and time.monotonic() - self._failed_at < _RETRY_SECONDS:
            return self._state, ()
        if self._closing is not None and not self._closing.is_done():
            return states.unresponsive(self._closing.seconds()), ()
        if self._opening is None or self._opening.is_done():
            self._opening = Guarded(self._open)
            self._opening.wait(deadline)
        if not self._opening.is_done():  # also if it hangs since an earlier look: nobody waits twice
            return states.unresponsive(self._opening.seconds()), ()
        if self._state is None or not self._state.ok:
            self._failed_at = time.monotonic()
            return self._state or states.broken(self._opening.error), ()
        readings = self._readings(self._opening.value or 0, detail, links=links)
        return self._state, self._devices(readings, deadline, links=links)

    def close(self) -> None:
        """End NVML, unless one of its calls hangs: that would crash the process."""
        with self.lock:
            self.let_go()

    def let_go(self) -> None:
        """The same for a caller who holds the lock; costs nothing where NVML is not started."""
        if (self._nvml is not None or self._open_times) and not self._is_busy():
            self._closing = Guarded(self._stop)
            self._closing.wait(time.monotonic() + _SHUTDOWN_SECONDS)
        self._state, self._failed_at = None, -math.inf

    def _is_busy(self) -> bool:
        """Whether NVML is being started or ended just now, or tries to."""
        return any(call is not None and not call.is_done() for call in (self._opening, self._closing))

    def is_hanging(self) -> bool:
        """Whether a thread of this door still waits for the driver; asks without the lock."""
        calls = (self._opening, self._closing, *list(self._asked.values()))
        return any(call is not None and not call.is_done() for call in calls)

    def _open(self) -> int:
        """Start NVML if it is not running, and count the GPUs; the state says how it went."""
        try:
            if self._nvml is not None and not self._stale:
                with contextlib.suppress(NvmlError):
                    return self._nvml.count()
            self._stop()  # it ran before and no longer does: a reset, or another driver
            nvml = self._loaded = self._loaded or _load(self.simulate)
            nvml.start()
            self._open_times += 1
            count = nvml.count()
            self._state = states.working(_known(nvml.driver_version), _known(nvml.cuda_version))
            self._nvml, self._stale = nvml, False
        except (NvmlError, ScenarioError, MissingDependencyError) as error:
            self._state = states.of_error(error)
            return 0
        return count

    def _stop(self) -> None:
        """End NVML, or leave that to the next time while a call has yet to return."""
        if self._loaded is not None and all(call.is_done() for call in self._asked.values()):
            while self._open_times:
                self._open_times -= 1
                _known(self._loaded.stop)
        self._nvml = None
        for memory in (self._whole, self._counters, self._energies):
            memory.clear()

    def _readings(self, count: int, detail: str, *, links: bool) -> list[Asking]:
        """What to ask each GPU: where something is amiss with it, or GPUs came or went, everything."""
        if self._nvml is None:  # shut down in between
            return []
        terms = Terms(
            self._nvml,
            names_processes=self.simulate is not None or sees_host_processes(),
            driver=self._state.driver if self._state else None,
        )
        changed, self._count = count != self._count, count
        whole = detail != "fast" or changed
        return [self._next(terms, i, full=detail != "choice", whole=whole, links=links) for i in range(count)]

    def _next(self, terms: Terms, index: int, *, full: bool, whole: bool, links: bool) -> Asking:
        last = self._whole.get(index)
        counters = self._counters.setdefault(index, {})
        if whole or last is None:
            return Reading(terms, index, full=full, counters=counters if links else None)
        return Update(terms, last, links=links, counters=counters)

    def _devices(self, readings: list[Asking], deadline: float, *, links: bool) -> tuple[Device, ...]:
        """Ask them; the links' counters take their time, so then all GPUs at once."""
        asked = [reading for reading in readings if self._may_ask(reading.index)]
        works = [reading.run for reading in asked]
        calls = [Guarded(work) for work in works] if links else in_turn(works, _PATIENCE_SECONDS)
        self._asked.update(zip((reading.index for reading in asked), calls, strict=True))
        found: list[Device] = []
        for reading in readings:
            call = self._asked[reading.index]
            answered = reading in asked and call.wait(deadline)
            found += self._answer(reading, call) if answered else self._silence(reading, call)
        self._stale = bool(readings) and all(reading.needs_init for reading in readings)
        return tuple(found)

    def _may_ask(self, index: int) -> bool:
        """Whether no thread of an earlier look still waits for that GPU."""
        return index not in self._asked or self._asked[index].is_done()

    def _answer(self, reading: Asking, call: Guarded) -> tuple[Device, ...]:
        device = reading.device
        self._whole.pop(reading.index, None)
        if call.error is not None:
            device = device._replace(
                state="error",
                message=f"GPU {device.index} gave an answer that gpulab cannot read ({call.error!r}); "
                "please report it.",
            )
        known = self._known.get(device.index, (device,))[0]
        device = device._replace(uuid=device.uuid or known.uuid, name=device.name or known.name)
        self._known[device.index] = (device, *reading.slices)
        if device.state == "ok" and device.detailed_at is not None and not reading.is_stale:
            self._whole[device.index] = reading
        return (self._checked(device), *reading.slices)

    def _checked(self, device: Device) -> Device:
        """A counter that runs backwards while the driver is loaded says nothing."""
        joules, before = device.energy_joules, self._energies.get(device.index)
        if joules is None:
            return device
        self._energies[device.index] = joules
        return device._replace(energy_joules=None) if before is not None and joules < before else device

    def _silence(self, reading: Asking, call: Guarded) -> tuple[Device, ...]:
        """Who the GPU is, as far as it ever said, and nothing that could pass for its present load."""
        self._whole.pop(reading.index, None)
        known = self._known.setdefault(reading.index, (reading.device,))
        message = (
            f"GPU {reading.index} did not answer within {round(call.seconds(), 1):g} s; the others are not "
            "affected, and if it stays so, reset that GPU or reboot."
        )
        return tuple(
            Device(
                index=device.index,
                uuid=device.uuid,
                name=device.name,
                kind=device.kind,
                parent_uuid=device.parent_uuid,
                state="unresponsive",
                message=message,
                sampled_at=time.time(),
            )
            for device in known
        )


def _load(simulate: str | None) -> Binding:
    """Choose what stands behind pynvml: NVIDIA's library, or a simulated one.

    Raises MissingDependencyError, ScenarioError.
    """
    binding = Binding()
    if simulate is not None or "gpulab.hardware.simulated" in sys.modules:
        from gpulab.hardware import simulated

        simulated.uninstall() if simulate is None else simulated.install(simulate)
    return binding


def _known(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except NvmlError:
        return None


_door = _Door(None)
_replacing = allocate_lock()


def _door_to(simulate: str | None) -> _Door:
    """This process's door: a forked child, or one whose machine changed, gets a new one."""
    global _door  # noqa: PLW0603 - NVML itself is one per process
    with _replacing:
        if _door.pid != os.getpid() or _door.simulate != simulate:
            _door = _Door(simulate)
        return _door


def _forget() -> None:
    """In a forked child: locks of threads that are not there, and a library that answers no longer."""
    global _door, _replacing
    _door, _replacing = _Door(_door.simulate), allocate_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
