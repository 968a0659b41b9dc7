"""`gpulab doctor`: what works on this machine, what does not, and the remedy."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gpulab import config
from gpulab.allocation.directory import LeaseDirectory, find
from gpulab.allocation.leases import passed_over
from gpulab.config import Settings
from gpulab.errors import GpulabError
from gpulab.hardware import nvml
from gpulab.hardware.devices import Snapshot
from gpulab.hardware.mask import visible_uuids
from gpulab.hardware.record import latest

__all__ = ["Finding", "add_arguments", "examine", "run"]

_DOUBTFUL_FILE_SYSTEMS = ("nfs", "9p", "virtiofs", "fuse", "cifs", "smb", "lustre", "afs", "ceph")


class Finding(NamedTuple):
    """One thing that was looked at."""

    subject: str
    state: str
    """ok, note (works with a limit) or fail"""
    message: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gpulab doctor`."""
    parser.add_argument("--json", action="store_true", help="one JSON object (gpulab.doctor/1)")


def run(args: argparse.Namespace) -> int:
    """Print the findings; 1 if one of them is a failure."""
    findings = list(examine(config.load()))
    failed = any(finding.state == "fail" for finding in findings)
    if args.json:
        entries = [finding._asdict() for finding in findings]
        print(json.dumps({"schema": "gpulab.doctor/1", "ok": not failed, "findings": entries}))
    else:
        marks = {"ok": "ok  ", "note": "note", "fail": "FAIL"}
        for finding in findings:
            print(f"{marks[finding.state]}  {finding.subject}: {finding.message}")
    return 1 if failed else 0


def examine(settings: Settings) -> Iterator[Finding]:
    """Look at everything; a check that itself breaks is a failure with that text."""
    snapshot = nvml.snapshot(detail="full", settings=settings)
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("driver", lambda: _driver(snapshot)),
        ("devices", lambda: _devices(snapshot)),
        ("mask", lambda: _mask(snapshot, settings)),
        ("leases", lambda: _leases(settings)),
        ("sampler", lambda: _sampler(settings)),
        ("Jupyter", _jupyter),
        ("front end", _front_end),
        ("GPU libraries", _libraries),
    ]
    for subject, check in checks:
        try:
            yield from check()
        except (GpulabError, OSError, ImportError) as error:
            yield Finding(subject, "fail", str(error))
        except Exception as error:  # noqa: BLE001 - the rim: one broken check must not hide the others
            reason = f"{type(error).__name__}: {error}"
            yield Finding(subject, "fail", f"this check itself broke ({reason}); please report it.")


def _driver(snapshot: Snapshot) -> Iterator[Finding]:
    driver = snapshot.driver
    if driver.ok:
        simulated = "a simulated machine, " if snapshot.simulated else ""
        yield Finding("driver", "ok", f"{simulated}driver {driver.driver}, CUDA {driver.cuda}")
    else:
        yield Finding("driver", "fail", driver.message)


def _devices(snapshot: Snapshot) -> Iterator[Finding]:
    broken = [device for device in snapshot.devices if device.state != "ok"]
    for device in broken:
        yield Finding(f"GPU {device.index}", "fail", device.message or device.state)
    if snapshot.driver.ok:
        good = len(snapshot.devices) - len(broken)
        yield Finding("devices", "ok" if good else "fail", f"{good} of {len(snapshot.devices)} answer")


def _mask(snapshot: Snapshot, settings: Settings) -> Iterator[Finding]:
    mask = settings.outer_devices
    visible = visible_uuids(snapshot.devices, mask, settings.device_order)
    if visible is None or not snapshot.driver.ok:
        return
    if visible:
        yield Finding(
            "mask", "note", f"CUDA_VISIBLE_DEVICES={mask} leaves {len(visible)} devices to choose from"
        )
    else:
        message = f"CUDA_VISIBLE_DEVICES={mask!r} names no device of this machine; correct or unset it."
        yield Finding("mask", "fail", message)


def _leases(settings: Settings) -> Iterator[Finding]:
    directory = find(settings)
    os.close(directory.open_guard())
    if _locks_exclude(directory):
        yield Finding("leases", "ok", f"locks in {directory.path} exclude each other")
    else:
        message = f"locks in {directory.path} do not work; set GPULAB_LEASE_DIR to a local disk."
        yield Finding("leases", "fail", message)
    passed = passed_over(directory)
    if passed:
        files = "1 file" if passed == 1 else f"{passed} files"
        message = f"{files} in {directory.path} passed over, because they are no leases; have them removed"
        yield Finding("leases", "note", message)
    kind = _file_system(directory.path)
    if kind.startswith(_DOUBTFUL_FILE_SYSTEMS):
        yield Finding(
            "leases", "note", f"{directory.path} is on {kind}, where locks are often only pretended"
        )
    if directory.scope == "account":
        message = "leases of this account only: others neither see nor respect them; run `sudo gpulab setup`"
        yield Finding("lease scope", "note", message)
    else:
        yield Finding("lease scope", "ok", "all accounts of this host")


def _locks_exclude(directory: LeaseDirectory) -> bool:
    """Try it: hold a lock here, and let another process ask for the same."""
    import fcntl

    path = os.path.join(directory.path, f".new-{os.urandom(4).hex()}")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ask = "import fcntl,sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_SH | fcntl.LOCK_NB)"
        other = subprocess.run([sys.executable, "-S", "-c", ask, path], capture_output=True, check=False)
        return b"BlockingIOError" in other.stderr
    finally:
        os.close(fd)
        os.unlink(path)


def _file_system(path: str) -> str:
    """The type of the file system that holds `path`, from the longest matching mount point."""
    best, kind = "", "unknown"
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            point = before.split()[4]
            inside = os.path.realpath(path).startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind = point, after.split()[0]
    return kind


def _sampler(settings: Settings) -> Iterator[Finding]:
    fresh = latest(settings, max_age=5.0)
    if fresh is not None:
        yield Finding("sampler", "ok", "running; its record is fresh")
    elif os.access(_existing(settings.machine_dir), os.W_OK):
        yield Finding("sampler", "ok", "not running now; it starts when somebody looks")
    else:
        message = f"{settings.machine_dir} cannot be written; set GPULAB_DATA_DIR to a directory of yours."
        yield Finding("sampler", "fail", message)


def _existing(path: str) -> str:
    while path != os.path.dirname(path) and not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def _jupyter() -> Iterator[Finding]:
    from jupyter_client.kernelspec import KernelSpecManager

    from gpulab.jupyter.kernelspec import PROVISIONER

    entry_points = importlib.metadata.entry_points(group="jupyter_client.kernel_provisioners")
    if PROVISIONER not in entry_points.names:
        yield Finding("Jupyter", "fail", "the kernel provisioner is not installed; run `pip install gpulab`.")
    specs = KernelSpecManager().get_all_specs()
    ours = [
        name
        for name, found in specs.items()
        if found["spec"]["metadata"].get("kernel_provisioner", {}).get("provisioner_name") == PROVISIONER
    ]
    if ours:
        yield Finding("Jupyter", "ok", f"GPU kernels: {', '.join(sorted(ours))}")
    else:
        yield Finding("Jupyter", "fail", "there is no GPU kernel; run `gpulab kernel install`.")


def _front_end() -> Iterator[Finding]:
    static = os.path.join(os.path.dirname(os.path.dirname(__file__)), "static")
    if os.path.exists(os.path.join(static, "monitor.js")):
        yield Finding("front end", "ok", "the monitor's bundle is there")
    else:
        yield Finding("front end", "fail", "the monitor's bundle is missing; run `pip install .` again.")


def _libraries() -> Iterator[Finding]:
    found = [name for name in ("cudf", "cuml", "cupy", "torch") if importlib.util.find_spec(name)]
    if "cuml" in found:
        yield Finding("GPU libraries", "ok", ", ".join(found))
    else:
        have = f"found {', '.join(found)}; " if found else ""
        yield Finding(
            "GPU libraries",
            "note",
            f"{have}cuML is missing, so comparisons run their CPU side only (gpulab[rapids])",
        )
