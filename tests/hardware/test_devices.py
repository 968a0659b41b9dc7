"""Frozen values and their JSON."""

from __future__ import annotations

import json

import pytest

from gpulab.hardware.devices import Device, DriverState, Memory, Process, Snapshot

GPU = Device(
    index=1,
    uuid="GPU-a",
    name="H100",
    sampled_at=12.5,
    memory=Memory(100, 60, 30, 10),
    gpu_percent=5,
    processes=(Process(7, "ada", "python", 20), Process(8, None, None, 15, 3.5, "graphics")),
)
SNAPSHOT = Snapshot(
    99.5, DriverState(driver="580", cuda="13.0"), (GPU, Device(2, state="lost")), simulated=True
)


def test_a_snapshot_survives_json() -> None:
    assert Snapshot.from_dict(json.loads(json.dumps(SNAPSHOT.to_dict()))) == SNAPSHOT


@pytest.mark.parametrize("key", ["time", "nvml", "devices", "simulated", "source"])
def test_a_record_of_another_shape_is_refused(key: str) -> None:
    record = SNAPSHOT.to_dict()
    del record[key]
    with pytest.raises((KeyError, TypeError, ValueError)):
        Snapshot.from_dict(record)
    with pytest.raises((KeyError, TypeError, ValueError)):
        Snapshot.from_dict({**SNAPSHOT.to_dict(), "devices": [{"index": 1}]})


def test_the_json_has_the_names_of_the_contract() -> None:
    entry = GPU.to_dict()
    assert entry["memory"] == {
        "total_bytes": 100,
        "used_bytes": 60,
        "free_bytes": 30,
        "reserved_bytes": 10,
        "shared_with_host": False,
    }
    assert entry["utilization"] == {"gpu_percent": 5, "memory_percent": None}
    assert entry["unattributed_bytes"] == 25


def test_memory_that_no_process_accounts_for_is_known_only_if_all_is_known() -> None:
    assert GPU.unattributed_bytes == 60 - 35
    assert GPU._replace(processes=()).unattributed_bytes == 60
    assert GPU._replace(processes=None).unattributed_bytes is None
    assert GPU._replace(memory=Memory()).unattributed_bytes is None
    assert GPU._replace(processes=(Process(7),)).unattributed_bytes is None
    assert GPU._replace(processes=(Process(7, memory_bytes=90),)).unattributed_bytes == 0


def test_a_device_is_found_by_its_uuid() -> None:
    assert SNAPSHOT.device("GPU-a") is GPU
    assert SNAPSHOT.device("GPU-b") is None


def test_a_driver_is_ok_or_says_why_not() -> None:
    assert DriverState().ok
    assert not DriverState("no_driver", 9, "why").ok


def test_as_a_cells_result_a_snapshot_is_a_line_for_each_device() -> None:
    first = Device(0, "GPU-a", "Test GPU", memory=Memory(80 * 2**30, 10 * 2**30), gpu_percent=73.0)
    lost = Device(1, "GPU-b", state="lost")
    shown = repr(Snapshot(1.5, DriverState(), (first, lost), simulated=True)).splitlines()
    assert shown[0] == "<Snapshot of a simulated machine at 1.500, from nvml: 2 devices>"
    assert shown[1] == "  <GPU 0, Test GPU: busy 73 %, memory 10.0 of 80.0 GiB>"
    assert shown[2] == "  <GPU 1, unnamed: busy n/a, memory n/a of n/a GiB, lost>"
    off = Snapshot(1.5, DriverState("no_driver", 9, "The driver is not loaded; load it."))
    assert "The driver is not loaded" in repr(off)
