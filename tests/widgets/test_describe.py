from __future__ import annotations

from gpulab.allocation.leases import LeaseRecord
from gpulab.hardware.devices import Device, DriverState, Memory, Process, Snapshot
from gpulab.widgets.describe import as_html, as_text, describe_devices, describe_machine

GIB = 2**30
T4 = Device(
    0,
    "GPU-a",
    "Tesla T4",
    memory=Memory(16 * GIB, 4 * GIB, 12 * GIB),
    gpu_percent=87.4,
    temperature_celsius=64.0,
    power_watts=61.0,
    processes=(),
)


def machine(*devices: Device, driver: DriverState | None = None, simulated: bool = False) -> Snapshot:
    return Snapshot(1_800_000_000.0, driver or DriverState(), devices, simulated=simulated)


def uses(*devices: Device, leases: tuple[LeaseRecord, ...] = (), drained: tuple[str, ...] = ()) -> list[str]:
    return [entry["use"] for entry in describe_devices(machine(*devices), leases, drained=drained)]


def describe(snapshot: Snapshot | None, trouble: str = "") -> dict[str, object]:
    return describe_machine(snapshot, mode="visible", host="", trouble=trouble)


def test_a_device_is_free_busy_leased_drained_or_not_known() -> None:
    busy = T4._replace(uuid="GPU-b", processes=(Process(7, "ada", "python"), Process(8, None)))
    hidden = T4._replace(uuid="GPU-c", processes=None)
    screen = T4._replace(uuid="GPU-d", processes=(Process(9, "root", "Xorg", 4 * GIB, type="graphics"),))
    idle = T4._replace(uuid="GPU-e", memory=Memory(16 * GIB, GIB // 4))
    lease = LeaseRecord("l1", ("GPU-a",), user="grace")
    assert uses(idle, busy, hidden, screen) == ["free", "busy", "unknown", "free"]
    assert uses(T4, busy, leases=(lease,), drained=("GPU-b",)) == ["leased", "drained"]
    assert describe_devices(machine(busy), ())[0]["users"] == ["ada"]


def test_memory_that_no_listed_process_accounts_for_does_not_look_free() -> None:
    assert uses(T4) == ["unseen"]  # 4 GiB, and nobody: a process of another container


def test_a_gpu_split_into_slices_says_so_and_slices_have_numbers_of_their_own() -> None:
    slices = [
        Device(0, f"MIG-{n}", "MIG 1g.10gb", kind="mig", parent_uuid="GPU-a", processes=()) for n in (0, 1)
    ]
    entries = describe_devices(machine(T4, *slices), ())
    assert [entry["label"] for entry in entries] == ["0", "0.0", "0.1"]
    assert [entry["use"] for entry in entries] == ["split", "free", "free"]


def test_the_own_lease_is_marked_with_its_share_and_others_are_named() -> None:
    own = LeaseRecord("mine", ("GPU-a",), "shared", 8 * GIB, user="ada", since=5.0, notebook="a.ipynb")
    other = LeaseRecord("l2", ("GPU-a",), "shared", 4 * GIB, uid=1234, idle_since=9.0)
    entry = describe_devices(machine(T4), (own, other), own="mine")[0]
    assert entry["mine"] is True
    assert entry["share_bytes"] == 8 * GIB
    assert entry["holders"] == [
        {
            "who": "ada",
            "notebook": "a.ipynb",
            "since": 5.0,
            "idle_since": None,
            "share_bytes": 8 * GIB,
            "mine": True,
        },
        {
            "who": "uid 1234",
            "notebook": None,
            "since": None,
            "idle_since": 9.0,
            "share_bytes": 4 * GIB,
            "mine": False,
        },
    ]


def test_a_mask_decides_what_is_visible_and_hides_nothing_else() -> None:
    second = T4._replace(index=1, uuid="GPU-b")
    entries = describe_devices(machine(T4, second), (), visible=frozenset({"GPU-b"}))
    assert [entry["visible"] for entry in entries] == [False, True]
    assert "GPU 0" not in as_text(machine(T4, second), describe(machine(T4, second)), entries)


def test_a_driver_that_is_off_is_told_in_its_own_sentence() -> None:
    off = machine(driver=DriverState("no_driver", 9, "No driver; install it."))
    assert describe(off)["trouble"] == "No driver; install it."
    assert as_text(off, describe(off), []) == "No driver; install it."
    limping = machine(T4, driver=DriverState("unresponsive", None, "It hangs."))
    assert describe(limping)["trouble"] == ""
    assert describe(limping)["notice"] == "It hangs."
    assert describe(machine())["trouble"] == "This machine has no NVIDIA GPU."


def test_the_text_has_every_figure_and_na_where_unknown() -> None:
    unknown = Device(1, "GPU-b", None)
    shown = machine(T4, unknown)
    assert as_text(shown, describe(shown), describe_devices(shown, ())).splitlines() == [
        "GPU 0, Tesla T4: utilization 87 %, memory 4.0 GiB of 16.0 GiB, power 61 W, temperature 64 °C",
        "GPU 1, unnamed GPU: utilization n/a, memory n/a, power n/a, temperature n/a",
    ]


def test_a_lost_device_shows_its_message_and_no_stale_figure() -> None:
    lost = machine(T4._replace(state="lost", message="GPU 0 is lost; reboot."))
    text = as_text(lost, describe(lost), describe_devices(lost, ()))
    assert "GPU 0 is lost; reboot." in text
    assert "87" not in text


def test_simulated_is_labelled_in_both() -> None:
    snapshot = machine(T4, simulated=True)
    entries = describe_devices(snapshot, ())
    assert as_text(snapshot, describe(snapshot), entries).startswith("Simulated GPUs.\n")
    assert ", simulated;" in as_html(snapshot, describe(snapshot), entries)


def test_the_table_escapes_whatever_a_device_calls_itself() -> None:
    evil = machine(T4._replace(name="<img src=x onerror=alert(1)>"))
    table = as_html(evil, describe(evil), describe_devices(evil, ()))
    assert "<img" not in table
    assert "&lt;img src=x onerror=alert(1)&gt;" in table
    assert "<p>&lt;b&gt;" in as_html(None, describe(None, trouble="<b>"), [])


def test_clock_and_brake_are_told_where_they_are_known_and_not_of_a_gpu_that_does_not_answer() -> None:
    capped = T4._replace(sm_clock_mhz=1335.0, throttle_reasons=("sw_power_cap",))
    hung = capped._replace(uuid="GPU-b", state="unresponsive", message="It hangs.")
    first, second, third = describe_devices(machine(capped, hung, T4._replace(uuid="GPU-c")), ())
    assert (first["sm_clock_mhz"], first["brake"][0]) == (1335.0, "power cap")
    assert (second["sm_clock_mhz"], second["brake"]) == (None, None)
    assert (third["sm_clock_mhz"], third["brake"]) == (None, None)


def test_a_pause_is_a_state_of_its_own_with_its_sentence() -> None:
    paused = describe(machine(driver=DriverState("paused", None, "root has paused gpulab.")))
    assert (paused["state"], paused["trouble"]) == ("paused", "root has paused gpulab.")


def test_old_figures_are_called_old() -> None:
    old = machine(T4)
    text = as_text(old, describe(old), describe_devices(old, ()), age=300)
    assert text.splitlines()[0] == "No new figures for 5 min; these are old."
