"""A night in seconds: the real reading and the real store over a simulated machine whose clock runs fast.

`python -m gpulab.telemetry.rehearsal night.json --start 2026-03-01T20:00 --hours 10` writes the history of
that machine, which `GPULAB_SIMULATE=night.json gpulab history` then reads. The holders are the scenario's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from gpulab import config
from gpulab.allocation.directory import account_name
from gpulab.allocation.records import LeaseRecord
from gpulab.config import Settings
from gpulab.errors import GpulabError, RequestError
from gpulab.hardware import nvml, scenario
from gpulab.hardware.simulation import clock
from gpulab.hardware.simulation.machine import Machine, SimulatedLease
from gpulab.telemetry.store import Store, store_path

__all__ = ["holders", "main", "rehearse"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a simulated machine's history of some hours."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m gpulab.telemetry.rehearsal", description=main.__doc__)
    parser.add_argument("scenario", help="a file that describes the machine, and who holds what when")
    parser.add_argument("--start", required=True, help="when it begins, such as 2026-03-01T20:00 (UTC)")
    parser.add_argument("--hours", type=float, required=True, help="how long it lasts")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between samples (10)")
    options = parser.parse_args(arguments)
    try:
        settings = config.load()._replace(simulate=os.path.abspath(options.scenario))
        written = rehearse(settings, _moment(options.start), 3600 * options.hours, options.every)
    except (GpulabError, OSError) as error:
        print(error, file=sys.stderr)
        return error.exit_code if isinstance(error, GpulabError) else 1
    begin, end = _moment(options.start), _moment(options.start) + 3600 * options.hours
    print(f"{written} simulated samples are in {store_path(settings)}; to read them:")
    print(f"GPULAB_SIMULATE={options.scenario} gpulab history --since {_iso(begin)} --until {_iso(end)}")
    return 0


def rehearse(settings: Settings, start: float, seconds: float, every: float = 10.0) -> int:
    """Sample the machine of `settings.simulate` from `start` (seconds since the epoch); how often.

    Raises
    ------
    RequestError
        There is nothing to sample, or the history tells of that time already.
    ScenarioError, OSError
        The scenario cannot be read; there can be no directory for the history.
    """
    if settings.simulate is None or not every > 0 or not seconds > 0:
        raise RequestError("A rehearsal needs a scenario, some hours and some seconds between samples.")
    machine = scenario.load(settings.simulate)
    if machine.leases and not machine.epoch:
        raise RequestError(
            f'The scenario counts its seconds from 1970, so nobody would hold anything then; write "epoch": '
            f"{start:.0f} into it, and they count from --start."
        )
    os.makedirs(settings.machine_dir, mode=0o700, exist_ok=True)
    store = Store(settings, period=every, clock=clock.now)
    try:
        moments = [start + turn * every for turn in range(int(seconds / every) + 1)]
        written = sum(_sample(settings, store, machine, moment) for moment in moments)
    finally:
        clock.set_to(None)
        store.close()
        nvml.shutdown()
    if not written:
        raise RequestError(f"Nothing was written; remove {store_path(settings)} or choose another --start.")
    return written


def _sample(settings: Settings, store: Store, machine: Machine, moment: float) -> bool:
    clock.set_to(moment)
    snapshot = nvml.snapshot(settings=settings)._replace(time=moment)
    return bool(snapshot.devices) and store.append(snapshot, holders(machine, moment))


def holders(machine: Machine, moment: float) -> tuple[LeaseRecord, ...]:
    """The leases that the scenario says are held at an instant (seconds since the epoch)."""
    now = moment - machine.epoch
    return tuple(
        _record(machine, place, lease)
        for place, lease in enumerate(machine.leases)
        if lease.start <= now < lease.end
    )


def _record(machine: Machine, place: int, lease: SimulatedLease) -> LeaseRecord:
    device = machine.devices[lease.gpu]
    uuid = device.uuid if lease.slice is None else device.slices[lease.slice].uuid
    return LeaseRecord(
        id=f"{place + 1:08x}",
        gpus=(uuid,),
        mode="exclusive" if lease.memory is None else "shared",
        memory_bytes=lease.memory,
        uid=lease.uid,
        user=account_name(lease.uid),
        since=machine.epoch + lease.start,
        notebook=lease.notebook,
    )


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _moment(text: str) -> float:
    """Seconds since the epoch; a time without a zone is UTC."""
    try:
        return datetime.fromisoformat(
            text if "+" in text or text.endswith("Z") else f"{text}+00:00"
        ).timestamp()
    except ValueError as error:
        raise RequestError(f"--start is {text!r}; write for example 2026-03-01T20:00.") from error


if __name__ == "__main__":
    sys.exit(main())
