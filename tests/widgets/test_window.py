from __future__ import annotations

import math
import struct

from gpulab.hardware.devices import Device, DriverState, Memory, Snapshot
from gpulab.telemetry.store import Sample
from gpulab.widgets.window import FIGURES, Row, Window, pack

NOON = 1_800_000_000.0


def snapshot(time: float, *uuids: str, percent: float | None = 50.0, state: str = "ok") -> Snapshot:
    devices = [
        Device(
            i, uuid, state=state, memory=Memory(used_bytes=3 * 2**30), gpu_percent=percent, power_watts=70.0
        )
        for i, uuid in enumerate(uuids)
    ]
    return Snapshot(time, DriverState(), tuple(devices))


def unpack(packed: bytes) -> tuple[int, int, list[tuple[float, tuple[float, ...]]]]:
    """As the front end does it."""
    base, layout, devices = struct.unpack_from("<dII", packed)
    width = 1 + FIGURES * devices
    floats = struct.unpack(f"<{(len(packed) - 16) // 4}f", packed[16:])
    rows = [floats[start : start + width] for start in range(0, len(floats), width)]
    return layout, devices, [(base + row[0], row[1:]) for row in rows]


def test_rows_survive_the_packing_and_memory_is_in_mebibytes() -> None:
    window = Window(60)
    window.begin(snapshot(NOON, "a", "b"), {})
    window.append(snapshot(NOON + 1.25, "a", "b"))
    layout, devices, rows = unpack(window.pack())
    assert (layout, devices) == (1, 2)
    assert [time for time, _ in rows] == [NOON, NOON + 1.25]
    assert rows[1][1][:3] == (50.0, 3072.0, 70.0)
    assert math.isnan(rows[1][1][3])


def test_eight_devices_make_a_message_of_less_than_160_bytes() -> None:
    window = Window(60)
    window.begin(snapshot(NOON, *"abcdefgh"), {})
    assert len(window.pack([window.rows[-1]])) < 160


def test_a_window_begins_with_the_stored_history_and_holes_where_a_device_has_none() -> None:
    window = Window(60)
    stored = {
        "a": [Sample(NOON - 2, 10.0, 2**30, 60.0, 40.0), Sample(NOON - 1, 20.0, 2**30, 61.0, 41.0)],
        "b": [Sample(NOON - 1, 30.0, 2**31, None, 42.0)],
        "gone": [Sample(NOON - 1, 99.0, 1, 1.0, 1.0)],
    }
    window.begin(snapshot(NOON, "a", "b"), stored)
    _, _, rows = unpack(window.pack())
    assert [time for time, _ in rows] == [NOON - 2, NOON - 1, NOON]
    assert rows[0][1][:4] == (10.0, 1024.0, 60.0, 40.0)
    assert all(math.isnan(figure) for figure in rows[0][1][4:])
    assert rows[1][1][4:6] == (30.0, 2048.0)


def test_the_sample_of_now_is_not_drawn_twice_when_the_store_has_it_already() -> None:
    window = Window(60)
    window.begin(snapshot(NOON, "a"), {"a": [Sample(NOON, 50.0, 1, 1.0, 1.0)]})
    assert len(window.rows) == 1


def test_old_rows_go() -> None:
    window = Window(3)
    window.begin(snapshot(NOON, "a"), {})
    for second in range(1, 10):
        window.append(snapshot(NOON + second, "a"))
    assert [row.time for row in window.rows] == [NOON + second for second in (6, 7, 8, 9)]


def test_another_list_of_devices_is_another_layout_and_a_gap_is_not() -> None:
    window = Window(60)
    window.begin(snapshot(NOON, "a", "b"), {})
    assert window.follows(snapshot(NOON + 1, "a", "b"), gap=2.5)
    assert not window.follows(snapshot(NOON + 9, "a", "b"), gap=2.5)
    assert not window.follows(snapshot(NOON - 9, "a", "b"), gap=2.5)
    assert not window.follows(snapshot(NOON + 1, "a"), gap=2.5)
    window.begin(snapshot(NOON + 9, "a", "b"), {})
    assert window.layout == 1
    window.begin(snapshot(NOON + 10, "a"), {})
    assert window.layout == 2


def test_a_lost_device_and_impossible_figures_are_unknown() -> None:
    window = Window(60)
    window.begin(snapshot(NOON, "a", state="lost"), {})
    window.append(snapshot(NOON + 1, "a", percent=1e300))
    assert all(math.isnan(figure) for figure in window.rows[0].figures)
    assert math.isnan(unpack(window.pack())[2][1][1][0])


def test_a_hole_is_found_while_it_is_recent() -> None:
    window = Window(60)
    window.begin(snapshot(NOON, "a"), {})
    window.append(snapshot(NOON + 1, "a"))
    assert not window.has_hole(within=30, gap=1.9)
    window.append(snapshot(NOON + 4, "a"))
    assert window.has_hole(within=30, gap=1.9)
    window.append(snapshot(NOON + 5, "a"))
    assert not window.has_hole(within=1, gap=1.9)
    assert not Window(60).has_hole(within=30, gap=1.9)


def test_no_rows_are_a_header_only() -> None:
    assert unpack(pack([], layout=3, devices=8)) == (3, 8, [])
    assert len(pack([Row(NOON, (1.0,) * 4)], layout=1, devices=1)) == 16 + 5 * 4
