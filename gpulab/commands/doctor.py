"""`gpulab doctor`: what works on this machine, what does not, and the remedy."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Callable, Iterator

from gpulab import config
from gpulab.commands.finding import Finding
from gpulab.commands.history_checks import check_history
from gpulab.commands.lease_checks import check_leases, check_scope
from gpulab.commands.rule_checks import check_rules
from gpulab.commands.sampler_checks import check_paused, check_sampler, check_service
from gpulab.config import Settings
from gpulab.errors import ConfigError, GpulabError
from gpulab.hardware import nvml
from gpulab.hardware.devices import Snapshot
from gpulab.hardware.mask import visible_uuids

__all__ = ["Finding", "add_arguments", "examine", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gpulab doctor`."""
    parser.add_argument("--json", action="store_true", help="one JSON object (gpulab.doctor/1)")


def run(args: argparse.Namespace) -> int:
    """Print the findings; 1 if one of them is a failure."""
    findings = list(examine())
    failed = any(finding.state == "fail" for finding in findings)
    if args.json:
        entries = [finding._asdict() for finding in findings]
        print(json.dumps({"schema": "gpulab.doctor/1", "ok": not failed, "findings": entries}))
    else:
        marks = {"ok": "ok  ", "note": "note", "fail": "FAIL"}
        for finding in findings:
            print(f"{marks[finding.state]}  {finding.subject}: {finding.message}")
    return 1 if failed else 0


def examine() -> Iterator[Finding]:
    """Look at everything; a check that itself breaks is a failure with that text."""
    try:
        settings, rules = config.load(), True
    except ConfigError as error:
        yield Finding("settings", "fail", f"{error} Until then kernels start without a GPU.")
        settings, rules = config.unruled(), False
    snapshot = nvml.snapshot(detail="full", settings=settings)
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("driver", lambda: _driver(snapshot)),
        ("devices", lambda: _devices(snapshot)),
        ("mask", lambda: _mask(snapshot, settings)),
        ("rules", lambda: check_rules(snapshot, settings) if rules else iter(())),
        ("leases", lambda: check_leases(settings)),
        ("lease scope", lambda: check_scope(settings)),
        ("paused", lambda: check_paused(settings)),
        ("sampler", lambda: check_sampler(settings)),
        ("service", lambda: check_service(settings)),
        ("history", lambda: check_history(settings)),
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
    elif driver.state != "paused":  # what somebody asked for is told by itself, and once
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
    visible = visible_uuids(snapshot.devices, mask, settings.outer_order)
    if visible is None or not snapshot.driver.ok:
        return
    if visible:
        yield Finding(
            "mask", "note", f"CUDA_VISIBLE_DEVICES={mask} leaves {len(visible)} devices to choose from"
        )
    else:
        message = f"CUDA_VISIBLE_DEVICES={mask!r} names no device of this machine; correct or unset it."
        yield Finding("mask", "fail", message)


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
