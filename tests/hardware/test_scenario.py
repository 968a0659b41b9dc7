"""The description of a simulated machine: what it may say, and what it says when it is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpulab.errors import ScenarioError
from gpulab.hardware.scenario import Watch, load
from gpulab.hardware.simulation.machine import Series, Steps, Wave, integral, value_at
from gpulab.hardware.simulation.profiles import PROFILES


def write(path: Path, content: Any) -> str:
    new = path.with_suffix(".new")
    new.write_text(content if isinstance(content, str) else json.dumps(content))
    os.replace(new, path)
    return str(path)


@pytest.mark.parametrize("profile", PROFILES)
def test_each_profile_makes_gpus_that_name_their_model_and_say_that_they_are_simulated(profile: str) -> None:
    devices = load(f"3x{profile}").devices
    assert len({device.uuid for device in devices}) == 3
    assert all(device.name == f"{PROFILES[profile].name} (simulated)" for device in devices)


def test_uuids_are_the_same_everywhere_and_have_the_real_form() -> None:
    (first, *_), again = load("8xh100").devices, load("8xh100").devices
    assert first.uuid == again[0].uuid != load("8xa100").devices[0].uuid
    kind, *groups = first.uuid.split("-")
    assert (kind, [len(group) for group in groups]) == ("GPU", [8, 4, 4, 4, 12])
    prefixes = {device.uuid[:12] for device in load("64xh100").devices}
    assert len(prefixes) == 64, "abbreviated names stay unique"


@pytest.mark.parametrize("seconds", [0.0, 3.3, 1e6, 1.8e9])
def test_the_default_machine_moves_but_all_of_it_can_be_leased(seconds: float) -> None:
    machine = load("8xh100")
    assert machine.processes == ()
    shown = [value_at(device.utilization, seconds) for device in machine.devices]
    assert max(shown) < 35
    assert max(shown[:3]) < 3
    assert any(
        abs(value_at(device.utilization, seconds + 7) - value_at(device.utilization, seconds)) > 1
        for device in machine.devices
    )
    assert all(value_at(device.memory_used, seconds) < 2**29 for device in machine.devices)


@pytest.mark.parametrize(
    ("series", "seconds", "value"),
    [
        (5.0, 99, 5),
        (Wave(10, 30, period=20), 0, 10),
        (Wave(10, 30, period=20), 10, 30),
        (Wave(10, 30, period=20, phase=0.5), 0, 30),
        (Steps((0, 10, 20), (1, 2, 3)), -5, 1),
        (Steps((0, 10, 20), (1, 2, 3)), 9.9, 1),
        (Steps((0, 10, 20), (1, 2, 3)), 10, 2),
        (Steps((0, 10, 20), (1, 2, 3)), 1000, 3),
        (Steps((0, 10, 20), (1, 2, 1), repeat=True), 35, 2),
    ],
)
def test_a_series_has_its_value_at_each_time(series: Series, seconds: float, value: float) -> None:
    assert value_at(series, seconds) == pytest.approx(value)


@pytest.mark.parametrize(
    "series",
    [
        7.0,
        Wave(10, 30, period=7, phase=0.3),
        Steps((0, 3, 9), (5, 50, 20)),
        Steps((0, 3, 9), (5, 50, 5), repeat=True),
    ],
)
def test_energy_is_the_sum_of_power_over_time(series: Series) -> None:
    steps = 40_000
    for end in (2.0, 8.5, 31.0):
        width = end / steps
        summed = sum(value_at(series, (i + 0.5) * width) for i in range(steps)) * width
        assert integral(series, end) == pytest.approx(summed, rel=1e-3)


def test_a_file_may_say_everything(tmp_path: Path) -> None:
    text = write(
        tmp_path / "all.json",
        {
            "driver": "550.1",
            "cuda": "12.4",
            "epoch": 1000,
            "devices": [
                {"profile": "t4", "count": 2, "timeline": {"utilization": {"steps": [[0, 1], [5, 90]]}}},
                {
                    "profile": "a100",
                    "uuid": "GPU-me",
                    "name": "My card",
                    "memory_total": "10GiB",
                    "memory_reserved": "100MiB",
                    "memory_used": {"wave": {"low": "1GiB", "high": "2GiB", "period": 9, "phase": 0.1}},
                    "memory_utilization": 3,
                    "power": 100,
                    "power_limit": 250,
                    "temperature": 40,
                    "utilization": {"steps": [[0, 1], [5, 2]], "repeat": True},
                    "compute_mode": "prohibited",
                    "mig": [{"profile": "1g.10gb", "memory_total": "9GiB", "uuid": "MIG-me",
                             "memory_used": 5}],
                    "missing": ["fan", "energy"],
                },
            ],
            "processes": [
                {"gpu": "GPU-me", "pid": 1, "memory": "1GiB", "type": "graphics",
                 "gpu_percent": 3, "bound": True},
                {"gpu": "MIG-me", "pid": 2, "memory": None},
            ],
            "faults": [{"call": "nvml*", "gpu": "GPU-me", "code": 3, "latency": 0.1, "hang": True, "after": 1,
                        "times": 2, "from": 5, "until": 6}],
            "hidden_symbols": ["nvmlX*"],
            "call_log": "calls",
        },
    )  # fmt: skip
    machine = load(text)
    assert [device.index for device in machine.devices] == [0, 1, 2]
    assert machine.devices[1].uuid == load("2xt4").devices[1].uuid
    assert value_at(machine.devices[1].utilization, 6) == 90
    own = machine.devices[2]
    assert (own.uuid, own.name, own.memory_total) == ("GPU-me", "My card (simulated)", 10 * 2**30)
    assert own.memory_used == Wave(2**30, 2 * 2**30, 9, 0.1)
    assert [(process.gpu, process.slice) for process in machine.processes] == [(2, None), (2, 0)]
    (fault,) = machine.faults
    assert (fault.gpu, fault.start, fault.end) == (2, 5, 6)
    assert machine.call_log == str(tmp_path / "calls")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"devices": [', "cannot be read"),
        ("[]", "is []; it must be an object"),
        ({"device": []}, "'device' ([]) is not a key"),
        ({"devices": [{"profil": "h100"}]}, "devices[0]: 'profil' ('h100') is not a key"),
        ({"devices": [{"profile": "h1000"}]}, "devices[0]: profile is 'h1000'; it must be one of t4"),
        ({"devices": [{"memory_used": "8Gigs"}]}, "memory_used is '8Gigs'; it must be a size"),
        ({"devices": [{"utilization": "much"}]}, "utilization is 'much'; it must be a number"),
        ({"devices": [{"utilization": True}]}, "utilization is True"),
        ({"devices": [{"utilization": {"ramp": 1}}]}, "'ramp' (1) is not a key"),
        ({"devices": [{"utilization": {}}]}, "one of wave and steps"),
        ({"devices": [{"utilization": {"steps": []}}]}, "steps is []"),
        ({"devices": [{"utilization": {"steps": [[5, 1], [3, 2]]}}]}, "ascend"),
        ({"devices": [{"utilization": {"steps": [5]}}]}, "steps has 5"),
        ({"devices": [{"utilization": {"wave": {"low": 1, "high": 2, "period": 0}}}]}, "period is 0"),
        ({"devices": [{"count": 0}]}, "count is 0"),
        ({"devices": [{"count": 99}]}, "count is 99"),
        ({"devices": [{"missing": ["wings"]}]}, "missing is 'wings'"),
        ({"devices": [{"mig": [{"profile": "big"}]}]}, "mig[0]: profile is 'big'"),
        ({"devices": [{"profile": "t4", "mig": [{}]}]}, "a t4 cannot be sliced"),
        ({"devices": [{"uuid": "a"}, {"uuid": "a"}]}, "two devices have the uuid 'a'"),
        ({"devices": [{}], "processes": [{"gpu": 4, "pid": 1}]}, "processes[0]: gpu is 4"),
        ({"devices": [{}], "processes": [{"gpu": 0, "pid": "x"}]}, "pid is 'x'"),
        ({"devices": [{}], "processes": [{"gpu": 0, "pid": 1, "type": "game"}]}, "type is 'game'"),
        ({"devices": [{}], "faults": [{"gpu": 1, "code": 3}]}, "faults[0]: gpu is 1"),
        ({"devices": [{}], "faults": [{"hang": "yes"}]}, "hang is 'yes'; it must be true or false"),
        ({"cuda": "twelve"}, "cuda is 'twelve'"),
        ({"driver": 5}, "driver is 5; it must be a text"),
    ],
)
def test_a_wrong_file_is_told_in_one_sentence_with_key_and_value(
    tmp_path: Path, content: Any, words: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(write(tmp_path / "wrong.json", content))
    assert words in str(caught.value)
    assert "wrong.json" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8xfoo", "there is no profile 'foo'; the profiles are t4"),
        ("0xh100", "1 to 64 GPUs"),
        ("65xh100", "1 to 64 GPUs"),
        ("nowhere.json", "there is no such file"),
        ("h100", "there is no such file"),
    ],
)
def test_a_wrong_name_is_told_with_what_would_be_right(text: str, words: str) -> None:
    with pytest.raises(ScenarioError, match=r"is no.* simulated machine") as caught:
        load(text)
    assert words in str(caught.value)


def test_a_changed_file_is_seen_and_a_half_written_one_keeps_the_last_good_machine(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    watch = Watch(write(path, {"devices": [{"profile": "t4"}]}))
    write(path, {"devices": [{"profile": "t4", "count": 2}]})
    assert len(watch.machine().devices) == 2
    path.write_text('{"devices": [{"prof')
    assert len(watch.machine().devices) == 2
    path.unlink()
    assert len(watch.machine().devices) == 2
    write(path, {"devices": []})
    assert watch.machine().devices == ()
