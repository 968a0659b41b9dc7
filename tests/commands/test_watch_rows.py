"""What `gpulab status --watch` says of each GPU, and what becomes of it where there is little room."""

from __future__ import annotations

import time

from rich.console import Console

from gpulab.allocation.records import LeaseRecord
from gpulab.allocation.status import status
from gpulab.commands.bars import bar, curve, plain
from gpulab.commands.watch_page import Page
from gpulab.commands.watch_rows import GpuRow, Silence, gpu_rows
from gpulab.config import load
from gpulab.hardware.devices import Device, DriverState, Memory, Process, Snapshot

GIB = 2**30


def rows(device: Device, *leases: LeaseRecord, silences: dict[str, Silence] | None = None) -> list[GpuRow]:
    snapshot = Snapshot(time.time(), DriverState(), (device,))
    return gpu_rows(status(snapshot, leases, load()), leases, silences or {}, {})


def lease(number: int, **more: object) -> LeaseRecord:
    terms = {"mode": "shared", "memory_bytes": 20 * GIB, "user": "ada", "uid": 4711, "container": True}
    return LeaseRecord(f"{number:08x}", ("GPU-a",), **{**terms, **more})  # type: ignore[arg-type]


def test_a_holder_is_named_with_share_notebook_and_how_long_it_has_been_idle() -> None:
    device = Device(0, "GPU-a", "T4", memory=Memory(80 * GIB, 30 * GIB), processes=())
    working = lease(1, notebook="work/night.ipynb")
    resting = lease(2, user="bob", idle_since=time.time() - 720)
    (row,) = rows(device, working, resting)
    assert row.who == ("ada 20 GiB night.ipynb", "bob 20 GiB idle 12 min")


def test_a_gpu_that_does_not_answer_is_said_before_who_holds_it() -> None:
    device = Device(0, "GPU-a", "T4", state="unresponsive")
    since = time.time() - 65
    (row,) = rows(device, lease(1), silences={"GPU-a": Silence(since, longer=False)})
    assert row.who[0].startswith("unresponsive since ")
    assert row.who[0].endswith("(1 min)")
    assert len(row.who[0]) <= 32  # what an 80th column leaves
    assert row.who[1] == "ada 20 GiB"
    (row,) = rows(device, silences={"GPU-a": Silence(since, longer=True)})
    assert row.who == (time.strftime("unresponsive since before %H:%M", time.localtime(since)),)


def test_processes_without_a_lease_beside_a_holder_are_counted() -> None:
    strangers = (Process(10**7, "eve", "miner"), Process(10**7 + 1, "eve", "miner"))
    (row,) = rows(Device(0, "GPU-a", "T4", processes=strangers), lease(1))
    assert row.who == ("ada 20 GiB", "and 2 processes without a lease")


def test_what_others_wrote_moves_no_cursor() -> None:
    hostile = lease(1, alias="a\x1b[2Jd\u202ea", notebook="n\nb.ipynb")
    (row,) = rows(Device(0, "GPU-a", "T\x1b[31m4", processes=()), hostile)
    assert (row.name + "".join(row.who)).isprintable()


def row(number: int, *who: str) -> GpuRow:
    return GpuRow(str(number), "T4", True, True, 50.0, GIB, 16 * GIB, 40.0, 70.0, who, ())


def shown(page: Page, columns: int, lines: int) -> list[str]:
    console = Console(
        width=columns, height=lines, force_terminal=True, color_system=None, legacy_windows=False
    )
    with console.capture() as captured:
        console.print(page)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_holders_without_a_line_of_their_own_are_counted_also_where_the_line_is_cut() -> None:
    gpus = [row(number, "a-very-long-login-name 20 GiB notebook.ipynb", "b", "c") for number in range(6)]
    for columns in (50, 80, 200):
        lines = shown(Page("title", (), "", gpus, ()), columns, 8)
        assert len(lines) == 8
        assert max(map(len, lines)) <= columns
        assert sum(line.endswith("+2 more") for line in lines) == 6
    tall = shown(Page("title", (), "", gpus, ()), 80, 30)
    assert sum(line.endswith((" b", " c")) for line in tall) == 12


def test_nothing_is_left_out_in_silence_however_small_the_window_is() -> None:
    gpus = [row(number, "free" if number % 2 else "ada whole") for number in range(20)]
    queue = [f"waiting, place {place}" for place in range(1, 13)]
    trouble = "The driver is in a state that takes a whole long sentence to be told. " * 4
    for height in range(8, 40):
        lines = shown(Page("title", (trouble, trouble, trouble), "scope", gpus, queue), 80, height)
        text = "\n".join(lines)
        assert len(lines) <= height
        told = sum(line.endswith(("free", "ada whole")) for line in lines)
        left = [line for line in lines if "more GPU" in line]
        assert told == 20 or int(left[0].split()[2]) == 20 - told, text
        waiting = sum("waiting, place" in line for line in lines)
        more = [line for line in lines if line.endswith("more wait") or line == "12 wait"]
        assert waiting == 12 or (more and int(more[0].removeprefix("… and ").split()[0]) == 12 - waiting), (
            text
        )
        assert text.count("The driver is in a state") >= 1


def test_bars_and_curves_tell_a_little_from_nothing_and_a_gap() -> None:
    assert bar(0.0, 4) == ("", "────")
    assert bar(0.001, 4) == ("▏", "───")
    assert bar(1.0, 4) == ("████", "")
    assert bar(None, 4) == ("", "    ")
    assert curve([None, 0, 50, 100]) == " ▁▅█"
    assert plain("▏───·…") == "#---|~"
