"""One sentence on how well a cell used its GPU, with the figures that it rests on.

What NVML tells bounds what can be said: its utilization is the share of time in which at least one kernel
ran, not how much of the GPU that kernel filled. The thresholds are ours, and coarse on purpose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpulab.units import format_bytes

if TYPE_CHECKING:
    from gpulab.telemetry.report import DeviceReport, Report

__all__ = ["Verdict", "judge"]

LEAST_SECONDS, LEAST_SAMPLES = 1.0, 3
"""NVML's own period is up to a second: of less, nothing can be said."""
UNUSED_PERCENT = 2.0
BUSY_PERCENT = 70.0
FULL_SHARE = 0.95
"""Of the device's memory; frameworks begin to fail or to spill before the last byte."""
TRANSFER_BYTES_PER_SECOND = 4e9
"""A quarter of PCIe 3.0 x16 (15.75 GB/s), the slowest link of a data-centre GPU since 2016: sustained, it is
no by-product of computing."""
LITTLE_POWER, LITTLE_MEMORY_PERCENT = 0.35, 20.0
"""Of the power limit, and of the time with memory traffic: who computes hard draws more than either."""
CLOCK_SECONDS = 1.0
"""By so much two clocks differ only if one was set, or the machine slept."""
CPU_CORES = 0.7
"""Processor seconds for each second, from which on this process itself keeps the GPU waiting."""


class Verdict(NamedTuple):
    """kind: unknown, unused, memory, transfer, small_launches, starved, waiting, shared or fine."""

    kind: str
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def judge(report: Report) -> Verdict:
    """The verdict on the GPU that this process used most."""
    if not report.devices and report.got:
        return Verdict("unused", str(report.reason))
    if not report.devices:
        return Verdict("unknown", f"Nothing can be said: {report.reason}")
    device = max(report.devices, key=_weight)
    early = _cannot_tell(report, device) or _unused(device)
    if early is not None:
        return early
    busy = _busy(device)
    if busy is None:
        return Verdict(
            "unknown",
            f"{device.label}'s utilization is not told (as of a MIG slice), so nothing can be said of how "
            "busy it was.",
        )
    verdict = _memory(device) or _transfer(device, busy) or _by_load(report, device, busy)
    return verdict._replace(sentence=verdict.sentence + _brakes(device) + _limits(device))


def _weight(device: DeviceReport) -> tuple[float, float, float]:
    return device.own_max_bytes or 0.0, device.own_percent or 0.0, device.gpu_percent or 0.0


def _busy(device: DeviceReport) -> float | None:
    """This process's share where others compute too, else the device's."""
    return device.own_percent if device.others else device.gpu_percent


def _cannot_tell(report: Report, device: DeviceReport) -> Verdict | None:
    if report.wall_seconds < LEAST_SECONDS:
        return Verdict(
            "unknown",
            f"Too short to tell: {report.wall_seconds * 1000:.0f} ms, and the driver's own figures are of up "
            "to a second. Run more at once, or repeat it in a loop.",
        )
    if abs(report.end - report.start - report.wall_seconds) > CLOCK_SECONDS:
        return Verdict(
            "unknown",
            "Nothing can be said: the machine's clock was set, or it slept, while the cell ran. "
            "Run it again.",
        )
    if device.samples and device.samples[-1].state not in (None, "ok"):
        return Verdict("unknown", f"{device.label} did not answer (its state: {device.samples[-1].state}).")
    answered = round(len(device.samples) * (1 - device.unanswered))
    if answered < LEAST_SAMPLES:
        return Verdict("unknown", f"Too few samples to tell ({answered} of {report.due} due).")
    if device.others and device.own_max_bytes and device.own_percent is None:
        return Verdict(
            "unknown",
            f"{_others(device)} held memory on {device.label} to compute there too, and the driver does not "
            "tell whose share was whose, so its figures say nothing of this cell alone.",
        )
    return None


def _unused(device: DeviceReport) -> Verdict | None:
    if device.own_max_bytes == 0 and not device.own_percent:
        if device.kin:
            return _by_kin(device)
        whose = "others' work" if device.others else "work of no process that is listed"
        more = f" (it was {device.gpu_percent:.0f} % busy with {whose})" if device.gpu_percent else ""
        return Verdict("unused", f"This process did not use the GPU{more}: the cell ran on the CPU.")
    busy = _busy(device)
    if busy is not None and busy < UNUSED_PERCENT and device.own_max_bytes:
        return Verdict(
            "unused",
            f"The GPU was hardly used: {busy:.0f} % of the time, while this process holds "
            f"{format_bytes(device.own_max_bytes)} on it.",
        )
    return None


def _by_kin(device: DeviceReport) -> Verdict:
    """A cell's own `!python train.py` is another process of the same account, and so is another notebook."""
    busy = "not told how" if device.gpu_percent is None else f"{device.gpu_percent:.0f} %"
    who = "another process" if device.kin == 1 else f"{device.kin} other processes"
    return Verdict(
        "unknown",
        f"This process itself did not use the GPU, but {who} of the same account did or could: "
        f"{device.label} was {busy} busy. If the cell started it, that is its work; who started whom is not "
        "recorded.",
    )


def _memory(device: DeviceReport) -> Verdict | None:
    used, total = device.memory_max_bytes, device.memory_total_bytes
    if used is None or not total or used < FULL_SHARE * total:
        return None
    own = device.own_max_bytes
    whose = "" if own is None or not device.others else f", {format_bytes(own)} of it this process's"
    advice = "" if whose and own is not None and own < used / 2 else " Work in smaller parts before it fails."
    return Verdict(
        "memory",
        f"The GPU's memory was nearly full: {format_bytes(used)} of {format_bytes(total)}{whose}.{advice}",
    )


def _transfer(device: DeviceReport, busy: float) -> Verdict | None:
    rates = {"to": device.pcie_rx_bytes_per_second or 0.0, "from": device.pcie_tx_bytes_per_second or 0.0}
    way, rate = max(rates.items(), key=lambda pair: pair[1])
    if rate < TRANSFER_BYTES_PER_SECOND or busy >= BUSY_PERCENT:
        return None
    if device.others:  # the link is counted for the whole device
        return Verdict(
            "unknown",
            f"Transfers may bound it: {rate / 1e9:.1f} GB/s went {way} the GPU, on which this cell computed "
            f"{busy:.0f} % of the time. Whether it or {_others(device).lower()} moved them is not told.",
        )
    return Verdict(
        "transfer",
        f"Bound by transfers: {rate / 1e9:.1f} GB/s {way} the GPU, which computed {busy:.0f} % of the time. "
        "Keep the data on the GPU, or move it once.",
    )


def _by_load(report: Report, device: DeviceReport, busy: float) -> Verdict:
    cores = None if report.cpu_seconds is None else report.cpu_seconds / report.wall_seconds
    if busy >= BUSY_PERCENT:
        return _small_launches(device, busy) or Verdict(
            "fine", f"Fine: kernels ran on the GPU {busy:.0f} % of the time."
        )
    if device.others and (device.gpu_percent or 0.0) >= BUSY_PERCENT:
        return Verdict(
            "shared",
            f"The GPU was shared: kernels ran on it {device.gpu_percent:.0f} % of the time, this cell's "
            f"{busy:.0f} %, the rest of {_others(device).lower()}. What this cell waited for, its turn there "
            "or the CPU, cannot be told.",
        )
    if cores is not None and cores >= CPU_CORES:
        return Verdict(
            "starved",
            f"The GPU was starved by the CPU: kernels ran {busy:.0f} % of the time, while this process kept "
            f"{cores:.1f} cores busy. Move more of the work to the GPU, or prepare it ahead.",
        )
    beside = "" if cores is None else f", and this process kept only {cores:.1f} cores busy"
    return Verdict(
        "waiting",
        f"The GPU waited: kernels ran {busy:.0f} % of the time{beside}. It waits for something else: disk, "
        "network, a lock, a sleep, or processes that still run (as of a data loader).",
    )


def _small_launches(device: DeviceReport, busy: float) -> Verdict | None:
    """Kernels all the time that draw little power and move little memory fill little of the GPU."""
    power, limit = device.power_watts, device.power_limit_watts
    if device.others or power is None or not limit or device.memory_percent is None:
        return None
    if power >= LITTLE_POWER * limit or device.memory_percent >= LITTLE_MEMORY_PERCENT:
        return None
    return Verdict(
        "small_launches",
        f"Many small launches, it seems: kernels ran {busy:.0f} % of the time, yet the GPU drew {power:.0f} "
        f"of {limit:.0f} W and touched its memory {device.memory_percent:.0f} % of the time. Larger "
        "batches, or fused kernels, fill it better.",
    )


def _brakes(device: DeviceReport) -> str:
    if not device.braked or device.braked[0][1] < 0.2:
        return ""
    word, share = device.braked[0]
    return f" Its clocks were held down {100 * share:.0f} % of the time ({word})."


def _limits(device: DeviceReport) -> str:
    """What the figures leave open."""
    open_ends = ""
    if device.unanswered:
        open_ends += f" {device.label} did not answer in {100 * device.unanswered:.0f} % of the samples."
    if device.others is None:
        open_ends += " Whether others used it as well is not known here."
    return open_ends


def _others(device: DeviceReport) -> str:
    return "Another process" if device.others == 1 else f"{device.others} other processes"
