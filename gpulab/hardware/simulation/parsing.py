"""A scenario's JSON file, read and checked key by key."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from typing import Any

from gpulab.errors import ScenarioError
from gpulab.hardware.simulation.entries import (
    Entry,
    flag,
    integer,
    listing,
    number,
    one_of,
    positive,
    series,
    size,
    size_series,
    text,
    texts,
    throttling,
)
from gpulab.hardware.simulation.machine import (
    COMPUTE_MODES,
    FIELDS,
    LABEL,
    MAX_DEVICES,
    NOT_AVAILABLE,
    Fault,
    Machine,
    SimulatedDevice,
    SimulatedLease,
    SimulatedProcess,
    Slice,
    calls_of,
    device_uuid,
)
from gpulab.hardware.simulation.profiles import PROFILES

__all__ = ["read_file"]

_CLOCKS = ("sm_clock", "memory_clock")
_RATES = ("pcie_rx", "pcie_tx", "nvlink_rx", "nvlink_tx")


def read_file(path: str) -> Machine:
    """The machine of a JSON file. Raises ScenarioError."""
    name = os.path.basename(path)
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError:
        raise ScenarioError(
            f"{path!r} is no simulated machine: there is no such file, and it is not NxPROFILE as in 8xh100."
        ) from None
    except (OSError, ValueError) as error:
        raise ScenarioError(f"The scenario {path} cannot be read ({error}); correct that file.") from error
    entry = Entry(content, name)
    machine = _machine(entry)
    log = machine.call_log
    return machine._replace(call_log=os.path.join(os.path.dirname(path), log) if log else None)


def _fields(value: Any, where: str) -> tuple[str, ...]:
    return tuple(one_of(FIELDS)(item, where) for item in listing(value, where))


def _machine(entry: Entry) -> Machine:
    devices: list[SimulatedDevice] = []
    for place, value in enumerate(entry.take("devices", listing, [])):
        devices += _devices(Entry(value, f"{entry.where}: devices[{place}]"), len(devices))
    uuids = [uuid for device in devices for uuid in (device.uuid, *(part.uuid for part in device.slices))]
    for uuid in uuids:
        if uuids.count(uuid) > 1:
            raise ScenarioError(f"{entry.where}: two devices have the uuid {uuid!r}; give each its own.")
    machine = Machine(
        devices=tuple(devices),
        processes=tuple(entry.each("processes", lambda e: _process(e, devices))),
        faults=tuple(entry.each("faults", lambda e: _fault(e, devices))),
        leases=tuple(entry.each("leases", lambda e: _lease(e, devices))),
        driver=entry.take("driver", text, "580.95.05"),
        cuda=entry.take("cuda", _cuda, "13.0"),
        epoch=entry.take("epoch", number, 0.0),
        hidden_symbols=entry.take("hidden_symbols", texts, ()),
        call_log=entry.take("call_log", text, None),
    )
    entry.close()
    return machine


def _devices(entry: Entry, first: int) -> list[SimulatedDevice]:
    """One entry of `devices`: one GPU, or `count` of them with UUIDs made from profile and index."""
    profile = entry.take("profile", one_of(PROFILES), "h100")
    count = entry.take("count", integer, 1)
    if not 1 <= count <= MAX_DEVICES - first:
        raise ScenarioError(f"{entry.where}: count is {count!r}; a machine has 1 to {MAX_DEVICES} GPUs.")
    device = _device(entry, profile, first)
    entry.close()
    if count == 1:
        return [device]
    return [_copy(device, profile, index) for index in range(first, first + count)]


def _copy(device: SimulatedDevice, profile: str, index: int) -> SimulatedDevice:
    slices = (part._replace(uuid=device_uuid(profile, index, i)) for i, part in enumerate(device.slices))
    return device._replace(index=index, uuid=device_uuid(profile, index), slices=tuple(slices))


def _device(entry: Entry, profile: str, index: int) -> SimulatedDevice:
    model = PROFILES[profile]
    total = entry.take("memory_total", size, model.memory_mib * 2**20)
    reserved = entry.take("memory_reserved", size, model.reserved_mib * 2**20)
    device = SimulatedDevice(
        index=index,
        uuid=entry.take("uuid", text, device_uuid(profile, index)),
        name=_labelled(entry.take("name", text, model.name)),
        model=model,
        memory_total=total,
        memory_reserved=min(reserved, total // 20),
        memory_used=entry.take("memory_used", size_series, 0),
        utilization=entry.take("utilization", series, 0),
        memory_utilization=entry.take("memory_utilization", series, None),
        power=entry.take("power", series, None),
        temperature=entry.take("temperature", series, None),
        power_limit=entry.take("power_limit", positive, model.power_limit),
        compute_mode=entry.take("compute_mode", one_of(COMPUTE_MODES), "default"),
        missing=calls_of((*model.missing, *entry.take("missing", _fields, ()))),
    )
    more: dict[str, Any] = {key: entry.take(key, size_series, None) for key in _RATES}
    more |= {key: entry.take(key, series, None) for key in _CLOCKS}
    device = device._replace(throttle=entry.take("throttle", throttling, None), **more)
    slices = tuple(entry.each("mig", lambda e: _slice(e, profile, index)))
    if slices and not model.mig:
        raise ScenarioError(f"{entry.where}: mig is set; a {profile} cannot be sliced.")
    timeline = entry.take("timeline", _timeline, None)
    device = device._replace(slices=slices)
    return timeline(device) if timeline else device


def _labelled(name: str) -> str:
    return name if name.endswith(LABEL) else name + LABEL


def _timeline(value: Any, where: str) -> Callable[[SimulatedDevice], SimulatedDevice]:
    """What the timeline sets, it sets in the place of the device's own key."""
    entry = Entry(value, where)
    read = {
        key: entry.take(key, series, None)
        for key in ("utilization", "memory_utilization", "power", "temperature", *_CLOCKS)
    }
    read |= {key: entry.take(key, size_series, None) for key in ("memory_used", *_RATES)}
    read["throttle"] = entry.take("throttle", throttling, None)
    entry.close()
    found: dict[str, Any] = {key: value for key, value in read.items() if value is not None}
    return lambda device: device._replace(**found)


def _slice(entry: Entry, profile: str, index: int) -> Slice:
    place = int(entry.where[entry.where.rindex("[") + 1 : -1])
    name = entry.take("profile", _mig_profile, "1g.10gb")
    part = Slice(
        uuid=entry.take("uuid", text, device_uuid(profile, index, place)),
        profile=name,
        memory_total=entry.take("memory_total", size, int(name.partition(".")[2][:-2]) * 2**30),
        memory_used=entry.take("memory_used", size_series, 0),
    )
    entry.close()
    return part


def _mig_profile(value: Any, where: str) -> str:
    compute, _, memory = text(value, where).partition("g.")
    if not compute.isdecimal() or not memory.endswith("gb") or not memory[:-2].isdecimal():
        raise ScenarioError(f"{where} is {value!r}; it must be a MIG profile such as 1g.10gb.")
    return str(value)


def _gpu(value: Any, where: str, devices: list[SimulatedDevice]) -> tuple[int, int | None]:
    """The index and, if it names one, the slice."""
    for device in devices:
        if value == device.uuid or (value == device.index and not isinstance(value, bool)):
            return device.index, None
        for place, part in enumerate(device.slices):
            if value == part.uuid:
                return device.index, place
    raise ScenarioError(f"{where} is {value!r}; it must be the index or UUID of a device of this scenario.")


def _process(entry: Entry, devices: list[SimulatedDevice]) -> SimulatedProcess:
    gpu, part = entry.take("gpu", lambda v, w: _gpu(v, w, devices), (0, None))
    process = SimulatedProcess(
        gpu=gpu,
        slice=part,
        pid=entry.take("pid", integer, 0),
        memory=entry.take("memory", lambda v, w: NOT_AVAILABLE if v is None else size(v, w), NOT_AVAILABLE),
        type=entry.take("type", one_of(("compute", "graphics")), "compute"),
        gpu_percent=entry.take("gpu_percent", number, None),
        bound=entry.take("bound", flag, False),
    )
    entry.close()
    return process


def _lease(entry: Entry, devices: list[SimulatedDevice]) -> SimulatedLease:
    gpu, part = entry.take("gpu", lambda v, w: _gpu(v, w, devices), (0, None))
    lease = SimulatedLease(
        gpu=gpu,
        slice=part,
        uid=entry.take("uid", integer, 0),
        start=entry.take("from", number, 0.0),
        end=entry.take("until", number, math.inf),
        memory=entry.take("memory", lambda v, w: None if v is None else size(v, w), None),
        notebook=entry.take("notebook", text, None),
    )
    entry.close()
    return lease


def _fault(entry: Entry, devices: list[SimulatedDevice]) -> Fault:
    gpu = entry.take("gpu", lambda v, w: None if v is None else _gpu(v, w, devices)[0], None)
    fault = Fault(
        call=entry.take("call", text, "*"),
        gpu=gpu,
        code=entry.take("code", integer, 0),
        latency=entry.take("latency", number, 0.0),
        hang=entry.take("hang", flag, False),
        after=entry.take("after", integer, 0),
        times=entry.take("times", integer, None),
        start=entry.take("from", number, None),
        end=entry.take("until", number, None),
    )
    entry.close()
    return fault


def _cuda(value: Any, where: str) -> str:
    major, _, minor = text(value, where).partition(".")
    if not major.isdecimal() or not minor.isdecimal():
        raise ScenarioError(f"{where} is {value!r}; it must be a version such as 13.0.")
    return str(value)
