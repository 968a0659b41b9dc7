"""What Prometheus is told: true, in base units, absent where unknown, of nobody more than the rule allows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import CollectorRegistry

from gpulab import config
from gpulab.allocation import leases, tickets
from gpulab.allocation.directory import account_name, find
from gpulab.allocation.leases import HeldLease
from gpulab.allocation.records import LeaseRecord
from gpulab.allocation.requests import Request
from gpulab.config import Settings
from gpulab.hardware import nvml
from gpulab.hardware.devices import Device, DriverState, Memory, Process, Snapshot
from gpulab.telemetry import exporter
from gpulab.telemetry.exporting import families, holdings
from gpulab.telemetry.exporting.dcgm import families as dcgm_families
from gpulab.telemetry.exporting.facts import Facts, Labels, labels_of

GIB = 2**30
HOSTILE = 'a"b\\c\nd{e="f"} 1\n# TYPE x gauge é'
DEVICE = Device(
    index=3,
    uuid="GPU-1",
    name="NVIDIA X",
    memory=Memory(80 * GIB, 20 * GIB, 59 * GIB, GIB),
    gpu_percent=50.0,
    memory_percent=25.0,
    temperature_celsius=61.0,
    power_watts=250.5,
    power_limit_watts=700.0,
    energy_joules=1234.5,
    compute_mode="default",
    processes=(Process(4242, "ada", "secret-command", GIB, 50.0),),
    sm_clock_mhz=1980.0,
    memory_clock_mhz=2619.0,
    throttle_reasons=("sw_power_cap",),
)
FULL = ("host", "gpu", "uuid", "name")


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("GPULAB_SIMULATE", "2xt4")
    return config.load()


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("there is no promtool; install it (Debian: apt install prometheus) to run this test")
    return found


def snapshot(*devices: Device, driver: DriverState | None = None, age: float = 0.0) -> Snapshot:
    return Snapshot(time.time() - age, driver or DriverState(driver="580.1", cuda="13.0"), devices, True)


def text_of(settings: Settings, shot: Snapshot | None, **options: str) -> str:
    collector = exporter.Collector(settings, newest=lambda: shot, **options)
    return exporter.render(exporter.registry(collector), None)[0].decode()


Series = dict[str, list[tuple[dict[str, str], float]]]


def series(text: str) -> Series:
    """By the name of the metric; empty labels are none, as Prometheus has it."""
    found: Series = {}
    for family in parse_text(text):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if value}
            found.setdefault(sample.name, []).append((labels, sample.value))
    return found


def value(found: Series, name: str, **labels: str) -> float:
    """Of the one series that has these labels."""
    (only,) = [number for given, number in found[name] if labels.items() <= given.items()]
    return only


def test_a_device_is_told_in_base_units_under_its_names(settings: Settings) -> None:
    found = series(text_of(settings, snapshot(DEVICE), host="node7"))
    told = {name: value(found, f"gpulab_device_{name}", uuid="GPU-1") for name in (
        "utilization_ratio", "memory_utilization_ratio", "memory_size_bytes", "memory_used_bytes",
        "memory_free_bytes", "memory_reserved_bytes", "temperature_celsius", "power_watts",
        "power_limit_watts", "energy_joules_total", "sm_clock_hertz", "memory_clock_hertz", "processes",
    )}  # fmt: skip
    assert told == {
        "utilization_ratio": 0.5,
        "memory_utilization_ratio": 0.25,
        "memory_size_bytes": 80 * GIB,
        "memory_used_bytes": 20 * GIB,
        "memory_free_bytes": 59 * GIB,
        "memory_reserved_bytes": GIB,
        "temperature_celsius": 61,
        "power_watts": 250.5,
        "power_limit_watts": 700,
        "energy_joules_total": 1234.5,
        "sm_clock_hertz": 1980e6,
        "memory_clock_hertz": 2619e6,
        "processes": 1,
    }
    ((labels, _),) = found["gpulab_device_power_watts"]
    assert labels == {"host": "node7", "gpu": "3", "uuid": "GPU-1", "name": "NVIDIA X"}
    assert value(found, "gpulab_device_throttled", reason="sw_power_cap") == 1
    assert value(found, "gpulab_device_throttled", reason="hw_slowdown") == 0
    assert value(found, "gpulab_device_state", state="ok") == 1
    assert value(found, "gpulab_simulated") == 1
    assert value(found, "gpulab_up") == 1
    assert value(found, "gpulab_driver_info", driver="580.1", cuda="13.0") == 1


def test_a_slice_names_the_gpu_that_it_is_of(settings: Settings) -> None:
    mig = DEVICE._replace(uuid="MIG-1", kind="mig", parent_uuid="GPU-1")
    found = series(text_of(settings, snapshot(DEVICE, mig)))
    assert value(found, "gpulab_device_power_watts", uuid="MIG-1", parent="GPU-1") == 250.5
    assert value(found, "gpulab_device_info", uuid="MIG-1", kind="mig") == 1


def test_what_is_unknown_has_no_series_and_is_not_0(settings: Settings) -> None:
    dark = Device(index=0, uuid="GPU-0", name="NVIDIA Dark")
    found = series(text_of(settings, snapshot(dark)))
    assert {name for name in found if name.startswith("gpulab_device_")} == {
        "gpulab_device_state",
        "gpulab_device_drained",
        "gpulab_device_info",
    }


def test_a_lost_gpu_has_its_state_and_the_others_their_figures(settings: Settings) -> None:
    lost = DEVICE._replace(index=1, uuid="GPU-lost", state="lost")
    found = series(text_of(settings, snapshot(DEVICE, lost)))
    told = {
        name for name, entries in found.items() for labels, _ in entries if labels.get("uuid") == "GPU-lost"
    }
    assert told == {"gpulab_device_state", "gpulab_device_drained"}
    assert value(found, "gpulab_device_state", uuid="GPU-lost", state="lost") == 1
    assert value(found, "gpulab_device_state", uuid="GPU-lost", state="ok") == 0
    assert value(found, "gpulab_device_power_watts", uuid="GPU-1") == 250.5


def test_without_a_gpu_the_drivers_state_is_told_and_no_device(settings: Settings) -> None:
    found = series(text_of(settings, snapshot(driver=DriverState("no_driver", 9, "not loaded"))))
    assert value(found, "gpulab_up") == 0
    assert value(found, "gpulab_driver_state", state="no_driver") == 1
    assert value(found, "gpulab_driver_state", state="ok") == 0
    assert not any(name.startswith("gpulab_device_") for name in found)


@pytest.mark.parametrize("age", [60.0, -60.0])
def test_a_record_that_is_not_of_now_has_no_figures(settings: Settings, age: float) -> None:
    found = series(text_of(settings, snapshot(DEVICE, age=age)))
    assert value(found, "gpulab_up") == 0
    assert not any(
        name.startswith(("gpulab_device_", "gpulab_driver_", "gpulab_simulated")) for name in found
    )
    if age > 0:
        assert value(found, "gpulab_sample_age_seconds") == pytest.approx(age, abs=5)
    else:
        assert "gpulab_sample_age_seconds" not in found


def test_without_any_record_there_is_still_an_answer(settings: Settings) -> None:
    found = series(exporter.render(exporter.registry(exporter.Collector(settings)), None)[0].decode())
    assert value(found, "gpulab_up") == 0
    assert value(found, "gpulab_info", lease_scope="account") == 1


def test_a_device_that_the_record_has_twice_is_told_once(settings: Settings) -> None:
    found = series(text_of(settings, snapshot(DEVICE, DEVICE)))
    assert len(found["gpulab_device_power_watts"]) == 1


@pytest.fixture
def shot(settings: Settings) -> Iterator[Snapshot]:
    yield nvml.snapshot(settings=settings)
    nvml.shutdown()


@pytest.fixture
def take(settings: Settings) -> Iterator[Callable[..., HeldLease]]:
    held: list[HeldLease] = []

    def begin(*gpus: str, memory: int | None = None) -> HeldLease:
        mode = "exclusive" if memory is None else "shared"
        held.append(leases.take(find(settings), gpus=gpus, mode=mode, memory_bytes=memory, priority="normal"))
        return held[-1]

    yield begin
    for lease in held:
        lease.give_up()


def test_a_share_is_told_with_its_holder_and_its_bytes_and_ends_with_it(
    settings: Settings, shot: Snapshot, take: Callable[..., HeldLease]
) -> None:
    first, second = (device.uuid or "" for device in shot.devices)
    login = account_name(os.getuid()) or ""
    small, large = take(first, memory=2 * GIB), take(first, memory=3 * GIB)
    take(second)
    found = series(text_of(settings, shot))
    held = {"user": login, "state": "active"}
    assert value(found, "gpulab_device_leases", uuid=first, gpu="0", mode="shared", **held) == 2
    assert value(found, "gpulab_device_leases", uuid=second, gpu="1", mode="exclusive", **held) == 1
    assert value(found, "gpulab_device_lease_memory_bytes", uuid=first, user=login) == 5 * GIB
    assert value(found, "gpulab_leases", state="active") == 3
    small.give_up()
    large.give_up()
    found = series(text_of(settings, shot))
    assert [labels["uuid"] for labels, _ in found["gpulab_device_leases"]] == [second]
    assert value(found, "gpulab_leases", state="active") == 1


def test_who_does_nothing_for_long_is_counted_as_idle(
    settings: Settings, shot: Snapshot, take: Callable[..., HeldLease]
) -> None:
    take(shot.devices[0].uuid).describe(idle_since=time.time() - 3600)
    found = series(text_of(settings._replace(idle_after=60.0), shot))
    assert {labels["state"]: number for labels, number in found["gpulab_leases"]} == {
        "active": 0,
        "idle": 1,
        "reclaimable": 0,
    }
    assert value(found, "gpulab_device_leases", state="idle") == 1


def test_a_lease_of_another_machine_is_not_this_ones(
    settings: Settings, shot: Snapshot, take: Callable[..., HeldLease]
) -> None:
    take("GPU-of-another-machine")
    found = series(text_of(settings, shot))
    assert "gpulab_device_leases" not in found
    assert value(found, "gpulab_leases", state="active") == 0


def test_while_the_driver_is_silent_its_gpus_leases_are_told_as_before(
    settings: Settings, shot: Snapshot, take: Callable[..., HeldLease]
) -> None:
    take(shot.devices[1].uuid)
    shots = [shot, snapshot(driver=DriverState("unresponsive"))]
    metrics = exporter.registry(exporter.Collector(settings, newest=lambda: shots.pop(0)))
    before, after = (series(exporter.render(metrics, None)[0].decode()) for _ in range(2))
    assert value(after, "gpulab_driver_state", state="unresponsive") == 1
    assert "gpulab_device_power_watts" not in after
    assert after["gpulab_device_leases"] == before["gpulab_device_leases"]


def test_who_waits_is_counted_by_priority(settings: Settings) -> None:
    directory = find(settings)
    for priority in ("high", "low", "low"):
        request = Request(gpus=1, priority=priority)
        tickets.draw(directory, request, within=None)  # let go of by the end of this process's descriptors
    found = series(text_of(settings, snapshot(DEVICE)))
    assert {labels["priority"]: number for labels, number in found["gpulab_waiters"]} == {
        "low": 2,
        "normal": 0,
        "high": 1,
    }
    assert {labels["priority"] for labels, _ in found["gpulab_longest_wait_seconds"]} == {"low", "high"}


def test_where_leases_cannot_be_read_nobody_is_said_to_hold_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    found = series(text_of(settings._replace(lease_dir=str(tmp_path / "file")), snapshot(DEVICE)))
    assert not any("lease" in name or "wait" in name for name in found)
    assert value(found, "gpulab_device_power_watts") == 250.5


LEASE = LeaseRecord(
    "0" * 8, ("GPU-1",), uid=os.getuid(), user="grace.hopper", pid=4242, notebook="/home/grace/secret.ipynb"
)


def held_by(names: str | None, *records: LeaseRecord) -> dict[str, float]:
    """The holders of a device, and how many leases each has."""
    facts = Facts(time.time(), "h", snapshot(DEVICE), records, ())
    known: dict[str, Labels] = {"GPU-1": labels_of(DEVICE, "h")}
    metrics = holdings.claims(facts, known, Settings(names=names))
    return {
        sample.labels["user"]: sample.value
        for family in metrics
        for sample in family.samples
        if sample.name == "gpulab_device_leases"
    }


def test_holders_are_called_as_the_rule_says_also_by_an_exporter_of_root_or_their_own() -> None:
    other = LEASE._replace(id="1" * 8, user="guido")
    assert held_by("full", LEASE, other) == {"grace.hopper": 1, "guido": 1}
    assert held_by(None, LEASE, other) == {"grace.hopper": 1, "guido": 1}
    assert held_by("initials", LEASE, other) == {"g.h.": 1, "g.": 1}
    assert held_by("none", LEASE, other) == {"": 2}
    assert held_by("none", LEASE._replace(user=None)) == {"": 1}


class _Given:
    """A collector of metrics that are there already."""

    def __init__(self, metrics: list[object]) -> None:
        self.metrics = metrics

    def collect(self) -> list[object]:
        return self.metrics


def everything(facts: Facts, names: str | None = None) -> CollectorRegistry:
    metrics = CollectorRegistry(auto_describe=False)
    known = {device.uuid or "": labels_of(device, facts.host) for device in facts.snapshot.devices}
    made = [
        *families.machine(facts),
        *families.devices(facts, ()),
        *holdings.claims(facts, known, Settings()),
    ]
    metrics.register(_Given(made))
    return metrics


@pytest.mark.parametrize("accept", [None, "application/openmetrics-text; version=1.0.0"])
def test_no_name_whatever_is_in_it_breaks_out_of_its_label(promtool: str, accept: str | None) -> None:
    device = DEVICE._replace(name=HOSTILE, throttle_reasons=(HOSTILE,))
    facts = Facts(time.time(), HOSTILE, snapshot(device), (LEASE._replace(user=HOSTILE),), ())
    text = exporter.render(everything(facts), accept)[0].decode()
    parse = parse_text if accept is None else parse_open
    samples = [sample for family in parse(text) for sample in family.samples]
    named = [sample for sample in samples if "name" in sample.labels]
    assert {sample.labels["name"] for sample in named} == {HOSTILE}
    assert {sample.labels["host"] for sample in samples} == {HOSTILE}
    assert {sample.labels["user"] for sample in samples if "user" in sample.labels} == {HOSTILE}
    assert all(sample.name.startswith("gpulab_") for sample in samples)
    if accept is None:
        assert check(promtool, text) == ""


def test_what_would_end_the_text_early_is_taken_out() -> None:
    facts = Facts(time.time(), "h", snapshot(DEVICE._replace(name="a\0b\udc80c" + "x" * 999)))
    text = exporter.render(everything(facts), None)[0].decode()
    (name,) = {s.labels["name"] for f in parse_text(text) for s in f.samples if "name" in s.labels}
    assert name.startswith("a\N{REPLACEMENT CHARACTER}b?cx")
    assert len(name) == 200


def test_no_process_and_no_notebook_is_told() -> None:
    facts = Facts(time.time(), "h", snapshot(DEVICE), (LEASE,), ())
    text = exporter.render(everything(facts), None)[0].decode()
    assert 'user="grace.hopper"' in text
    for secret in ("4242", "secret", "ada", LEASE.id):
        assert secret not in text


def check(promtool: str, text: str) -> str:
    """What promtool finds wrong, by the format and by the habits of naming."""
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    return (done.stdout + done.stderr).strip() if done.returncode or done.stderr else ""


def test_promtool_finds_nothing_to_say(settings: Settings, promtool: str) -> None:
    linked = DEVICE._replace(
        index=4,
        uuid="GPU-4",
        pcie_rx_bytes_per_second=1e9,
        pcie_tx_bytes_per_second=2e9,
        nvlink_rx_bytes_per_second=3e9,
        nvlink_tx_bytes_per_second=4e9,
    )
    text = text_of(settings, snapshot(DEVICE, linked))
    assert value(series(text), "gpulab_device_pcie_receive_bytes_per_second") == 1e9
    assert check(promtool, text) == ""
    assert check(promtool, text.replace("gpulab_up ", "gpulab_up_total ")) != ""


DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_docs_name_every_metric_and_no_other(
    settings: Settings, shot: Snapshot, take: Callable[..., HeldLease]
) -> None:
    take(shot.devices[0].uuid, memory=GIB)
    tickets.draw(find(settings), Request(gpus=1), within=None)
    rates = {name: 1.0 for name in Device._fields if name.endswith("bytes_per_second")}
    devices = (shot.devices[0]._replace(**{**DEVICE._asdict(), **rates, "uuid": shot.devices[0].uuid}),)
    found = series(text_of(settings, shot._replace(devices=devices)))
    table = DOCS.read_text().partition("| metric |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(gpulab_\w+)`", table)) == set(found)


def test_the_examples_for_prometheus_are_as_prometheus_wants_them(promtool: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        (tmp_path / "block.yml").write_text(block)
        kind = ("rules",) if block.startswith("groups:") else ("config", "--syntax-only")
        done = subprocess.run(
            [promtool, "check", *kind, str(tmp_path / "block.yml")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_client_that_asks_for_openmetrics_gets_it(settings: Settings) -> None:
    metrics = exporter.registry(exporter.Collector(settings, newest=lambda: snapshot(DEVICE)))
    body, kind = exporter.render(metrics, "application/openmetrics-text; version=1.0.0,text/plain;q=0.5")
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    energy = next(f for f in parse_open(body.decode()) if f.name == "gpulab_device_energy_joules")
    assert energy.type == "counter"
    assert exporter.render(metrics, None)[1].startswith("text/plain; version=0.0.4")


@pytest.mark.parametrize("label", ["hostname", "Hostname"])
def test_boards_made_for_dcgm_exporter_find_its_names_units_and_labels(
    settings: Settings, promtool: str, label: str
) -> None:
    mig = DEVICE._replace(uuid="MIG-1", kind="mig", parent_uuid="GPU-1", name="NVIDIA X MIG 1g.10gb")
    text = text_of(settings, snapshot(DEVICE, mig), host="node7", dcgm=label)
    found = series(text)
    told = {name: value(found, name, UUID="GPU-1") for name in found if name.startswith("DCGM_")}
    assert told == {
        "DCGM_FI_DEV_SM_CLOCK": 1980,
        "DCGM_FI_DEV_MEM_CLOCK": 2619,
        "DCGM_FI_DEV_GPU_TEMP": 61,
        "DCGM_FI_DEV_POWER_USAGE": 250.5,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1234500,
        "DCGM_FI_DEV_GPU_UTIL": 50,
        "DCGM_FI_DEV_MEM_COPY_UTIL": 25,
        "DCGM_FI_DEV_FB_FREE": 59 * 1024,
        "DCGM_FI_DEV_FB_USED": 20 * 1024,
        "DCGM_FI_DEV_FB_RESERVED": 1024,
    }
    whole, part = (labels for labels, _ in found["DCGM_FI_DEV_GPU_UTIL"])
    assert whole == {
        "gpu": "3",
        "UUID": "GPU-1",
        "modelName": "NVIDIA X",
        label: "node7",
        "DCGM_FI_DRIVER_VERSION": "580.1",
    }
    assert part["GPU_I_PROFILE"] == "1g.10gb"
    assert "error while linting" not in check(promtool, text)


def test_dcgms_names_are_left_out_where_nothing_is_known() -> None:
    dark = Facts(time.time(), "h", snapshot(Device(index=0, uuid="GPU-0"), DEVICE._replace(state="lost")))
    assert list(dcgm_families(dark, "hostname")) == []
