"""What the samples allow to be said: a speedup only where everything that proves it is there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

from gpulab.compare.sweep import crossover
from gpulab.compare.timing import ENOUGH_REPEATS, Summary, summarize, undisturbed

if TYPE_CHECKING:
    from gpulab.compare.result import Result
    from gpulab.compare.results.records import BackendRecord, Measurement, SizeRun

__all__ = [
    "Column",
    "Speedup",
    "break_even",
    "column_summary",
    "crossing",
    "fastest_gpu",
    "judge",
    "latest_speedup",
    "verdict",
    "why_disturbed",
]

Column = Literal["end_to_end", "compute", "host_to_device", "device_to_host"]
PAYS = 1.1
"""Below this a difference would not be worth a change of code."""


class Speedup(NamedTuple):
    """Best CPU backend's time over the GPU's, transfers in and out included.

    `low` and `high` combine the two medians' 95 % intervals at their worst, so they are wider than
    a 90 % interval of the ratio.
    """

    value: float
    low: float
    high: float
    size: int
    cpu: str
    gpu: str


def column_summary(measurement: Measurement, column: Column = "end_to_end") -> Summary | None:
    """Seconds of one column, from the undisturbed samples; None if the side has no such column.

    From all samples if too few are undisturbed to say anything; `judge` then states no speedup.
    """
    kept = undisturbed(measurement.samples)
    samples = kept if len(kept) >= ENOUGH_REPEATS else measurement.samples
    values = [getattr(sample, f"{column}_seconds") for sample in samples]
    return summarize([value for value in values if value is not None])


def fastest_gpu(result: Result, run: SizeRun) -> Measurement | None:
    """The GPU backend with the smallest median at this size, or None."""
    names = {backend.name for backend in result.backends if backend.side == "gpu"}
    timed = [(column_summary(m), m) for m in run.measurements if m.backend in names]
    return min(
        ((s.median, m) for s, m in timed if s is not None), key=lambda pair: pair[0], default=(0, None)
    )[1]


def judge(result: Result, run: SizeRun) -> Speedup | str:
    """The speedup at this size, or the reason why none can be stated."""
    gpu = fastest_gpu(result, run)
    if result.machine.simulated:
        return "the GPUs of this machine are simulated, and simulated GPUs cannot compute"
    if gpu is None:
        return _why_no_gpu(result, run)
    cpu = next((m for m in run.measurements if m.backend == run.best_cpu), None)
    if cpu is None:
        return "no CPU backend was measured to compare with"
    reasons = (
        _why_unnamed(result, cpu, gpu),
        _why_not_proved(run, cpu, gpu),
        why_disturbed(cpu),
        why_disturbed(gpu),
        _why_unknown_pressure(result, cpu, gpu),
        _why_strangers(run, gpu),
    )
    return next((reason for reason in reasons if reason is not None), None) or _ratio(run, cpu, gpu)


def _ratio(run: SizeRun, cpu: Measurement, gpu: Measurement) -> Speedup | str:
    ours, theirs = column_summary(cpu), column_summary(gpu)
    if not ours or not theirs or not ours.low or not theirs.low or not ours.high or not theirs.high:
        return f"there are fewer than {ENOUGH_REPEATS} undisturbed repeats; allow a larger budget"
    return Speedup(
        ours.median / theirs.median,
        ours.low / theirs.high,
        ours.high / theirs.low,
        run.size,
        cpu.backend,
        gpu.backend,
    )


def _why_no_gpu(result: Result, run: SizeRun) -> str:
    for backend in result.backends:
        if backend.side == "gpu":
            why = run.failures.get(backend.name) or backend.reason or run.reason
            return why or "the GPU side was not measured"
    return "no GPU backend was asked for"


def _why_unnamed(result: Result, cpu: Measurement, gpu: Measurement) -> str | None:
    """What a reader must know of both sides: that they could run, on which GPU, on how many threads."""
    for name in (cpu.backend, gpu.backend):
        backend = result.backend(name)
        if backend.state == "unavailable":
            return f"{name} is said to be unavailable here ({backend.reason or 'without a reason'})"
    if result.machine.gpu is None:
        return "it is not known which GPU was measured"
    if result.backend(cpu.backend).threads is None:
        return f"it is not known how many threads {cpu.backend} used"
    return None


def _why_unknown_pressure(result: Result, cpu: Measurement, gpu: Measurement) -> str | None:
    """A wait that the kernel does not tell is not the same as none."""
    shares = [sample.stalled_share for side in (cpu, gpu) for sample in side.samples]
    if result.machine.pressure is None or None in shares:
        return "it is not known whether other work disturbed the CPUs"
    return None


def _why_strangers(run: SizeRun, gpu: Measurement) -> str | None:
    found = run.strangers.get(gpu.backend)
    if found is None or found.before is None or found.after is None:
        why = found.reason if found is not None and found.reason else "it was not recorded"
        return f"it is not known whether other processes computed on the GPU of {gpu.backend}: {why}"
    most = max(found.before, found.after)
    if most:
        others = "another process" if most == 1 else f"{most} other processes"
        return f"{others} computed on the GPU of {gpu.backend}; measure again on a GPU of your own"
    return None


def _why_not_proved(run: SizeRun, cpu: Measurement, gpu: Measurement) -> str | None:
    doubt = run.placement.get(gpu.backend, "its placement was not checked")
    if doubt:
        return f"it is not proved that {gpu.backend} ran on the GPU: {doubt}"
    checks = [p for p in run.parity if {p.reference, p.candidate} == {cpu.backend, gpu.backend}]
    if not checks:
        return "the results of the two sides were not compared"
    different = [check.message for check in checks if check.state == "different"]
    if different:
        return f"the two sides disagree: {different[0]}"
    if any(s.host_to_device_seconds is None or s.device_to_host_seconds is None for s in gpu.samples):
        return "the transfers were not timed"
    return None


def why_disturbed(measurement: Measurement) -> str | None:
    """Too many disturbed repeats, said in a sentence; None if at least half were quiet."""
    count = len(measurement.samples)
    disturbed = count - len(undisturbed(measurement.samples))
    if 2 * disturbed <= count:
        return None
    return (
        f"other work on this machine's CPUs disturbed {disturbed} of {count} repeats of "
        f"{measurement.backend}; measure again when it is quiet"
    )


def latest_speedup(result: Result) -> Speedup | str:
    """That of the largest size that has one; else the reason, of the largest size that was measured."""
    judged = [(run, judge(result, run)) for run in result.runs]
    for _, found in reversed(judged):
        if isinstance(found, Speedup):
            return found
    measured = [found for run, found in judged if run.measurements]
    reasons = measured or [found for _, found in judged]
    return reasons[-1] if reasons else "nothing was measured"


def crossing(result: Result) -> float | None:
    """The size from which the GPU side is faster, between two measured sizes; None if there is none."""
    judged = [judge(result, run) for run in result.runs]
    return crossover([(found.size, found.value) for found in judged if isinstance(found, Speedup)])


def break_even(result: Result) -> int | None:
    """Calls in a fresh process until the GPU has made up for its slower start; None if it never does."""
    found = latest_speedup(result)
    if not isinstance(found, Speedup) or found.value <= 1:
        return None
    run = result.run(found.size)
    times = {m.backend: column_summary(m) for m in run.measurements}
    cpu, gpu = times[found.cpu], times[found.gpu]
    starts = [_start_up(result.backend(name)) for name in (found.cpu, found.gpu)]
    if cpu is None or gpu is None or starts[0] is None or starts[1] is None:
        return None
    return max(1, math.ceil((starts[1] - starts[0]) / (cpu.median - gpu.median)))


def _start_up(backend: BackendRecord) -> float | None:
    """What only the first call pays: import, and the first call's surplus over the next one."""
    parts = (backend.import_seconds, backend.first_call_seconds, backend.warm_call_seconds)
    if parts[0] is None or parts[1] is None or parts[2] is None:
        return None
    return parts[0] + max(0.0, parts[1] - parts[2])


def verdict(result: Result) -> str:
    """One sentence, and a second one where it is needed."""
    found = latest_speedup(result)
    note = "" if result.origin != "example" else "Example, not measured: "
    if not isinstance(found, Speedup):
        return f"{note}No verdict on the GPU: {found}."
    cpu, size = result.label(found.cpu), f"{found.size:,} {result.unit}"
    gpu = result.label(found.gpu)
    interval = f"{found.low:.3g} to {found.high:.3g}"
    if found.low > PAYS:
        calls = break_even(result)
        start = (
            f" In a fresh process it has made up for its slower start after {calls:,} calls." if calls else ""
        )
        return (
            f"{note}The GPU pays: at {size} {gpu} is {found.value:.3g} times as fast as {cpu} "
            f"({interval}), transfers included.{start}"
        )
    if found.high < 1:
        return (
            f"{note}The GPU does not pay: at {size} {cpu} is {1 / found.value:.3g} times as fast as {gpu}, "
            "transfers included."
        )
    return f"{note}No clear difference: at {size} the ratio of {cpu} to {gpu} lies between {interval}."
