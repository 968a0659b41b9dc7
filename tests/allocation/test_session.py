"""acquire, current and release, as a notebook's user meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpulab
from gpulab import config
from gpulab.allocation import session
from gpulab.allocation.leases import live_leases
from gpulab.errors import LeaseError, NoFreeGpuError, NoGpuError, RequestError


@pytest.fixture(autouse=True)
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    scenario = tmp_path / "machine.json"
    scenario.write_text(json.dumps({"devices": [{"profile": "h100", "count": 2, "utilization": 0}]}))
    monkeypatch.setenv("GPULAB_SIMULATE", str(scenario))
    # acquire() writes these itself; setting them here makes monkeypatch restore them.
    for name in (*config.LEASE_VARIABLES, "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPULAB_OUTER_MASK"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield scenario
    lease = gpulab.current()
    if lease is not None and lease.held is not None:
        lease.held.give_up()
    session._set_current(None)


def python(code: str, **popen: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, **popen)  # type: ignore[call-overload,no-any-return]


def test_acquire_masks_this_process_by_full_uuid_and_current_returns_the_lease() -> None:
    assert gpulab.current() is None
    lease = gpulab.acquire()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == lease.gpus[0]
    assert len(lease.gpus[0]) == 40
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert gpulab.current() is lease
    assert [record.id for record in live_leases(config.load())] == [lease.id]


def test_release_empties_the_mask_and_twice_is_fine() -> None:
    lease = gpulab.acquire()
    lease.release()
    lease.release()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert gpulab.current() is None
    assert live_leases(config.load()) == ()


def test_a_released_process_can_acquire_again() -> None:
    gpulab.acquire().release()
    assert gpulab.acquire(2).gpus


def test_a_with_block_gives_back_at_its_end_also_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), gpulab.acquire():
        _ = 1 / 0
    assert live_leases(config.load()) == ()


def test_a_second_acquire_is_refused_with_what_to_do() -> None:
    first = gpulab.acquire()
    with pytest.raises(LeaseError, match=f"already holds lease {first.id}; release it first"):
        gpulab.acquire()


def test_threads_that_acquire_at_once_get_one_lease() -> None:
    outcomes: list[object] = []

    def take() -> None:
        try:
            outcomes.append(gpulab.acquire())
        except LeaseError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(outcome, gpulab.Lease) for outcome in outcomes) == 1
    assert len(live_leases(config.load())) == 1


def test_a_full_machine_says_who_has_it() -> None:
    taker = "import gpulab; gpulab.acquire(2); print(flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", taker], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    other.stdout.readline()
    try:
        with pytest.raises(NoFreeGpuError, match=rf"process {other.pid}\) since"):
            gpulab.acquire(wait=0.1)
    finally:
        other.kill()
        other.communicate()
    assert gpulab.acquire(2)


def test_a_child_sees_the_lease_but_cannot_end_it() -> None:
    lease = gpulab.acquire()
    code = (
        "import gpulab\nlease = gpulab.current()\nprint(lease.id)\n"
        "try:\n    lease.release()\nexcept gpulab.errors.LeaseError as error:\n    print(error)\n"
    )
    shown, refusal = python("import gpulab.errors\n" + code).stdout.splitlines()
    assert shown == lease.id
    assert "belongs to another process" in refusal
    assert len(live_leases(config.load())) == 1


def test_a_forked_child_holds_nothing() -> None:
    lease = gpulab.acquire()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        found = gpulab.current()
        os.write(write, b"none" if found is None or found.held is None else b"held")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"none"
    assert lease.is_held()


def test_a_mask_from_outside_is_never_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    only = gpulab.snapshot().devices[1].uuid
    assert only is not None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", only)
    lease = gpulab.acquire()
    assert lease.gpus == (only,)
    lease.release()
    with pytest.raises(NoGpuError, match="outside CUDA_VISIBLE_DEVICES"):
        gpulab.acquire(2)


def test_a_process_that_nvml_names_cannot_release(two_gpus: Path) -> None:
    lease = gpulab.acquire()
    index = next(d.index for d in gpulab.snapshot().devices if d.uuid == lease.gpus[0])
    machine = json.loads(two_gpus.read_text())
    machine["processes"] = [{"gpu": index, "pid": os.getpid(), "memory": "1GiB"}]
    two_gpus.write_text(json.dumps(machine))
    with pytest.raises(LeaseError, match="restart or shut down the kernel"):
        lease.release()
    assert lease.is_held()


@pytest.mark.parametrize(
    ("request_", "error", "sentence"),
    [
        ({"gpus": 3}, NoGpuError, "this machine has 2 to hand out; ask for at most 2"),
        ({"memory": "8Gigs"}, RequestError, "'8Gigs' is not a size"),
        ({"policy": "best"}, RequestError, "There is no policy 'best'"),
        ({"wait": "soon"}, RequestError, "'soon' is not a duration"),
        ({"wait": -1}, RequestError, "A duration cannot be"),
    ],
)
def test_a_wrong_request_is_one_sentence(
    request_: dict[str, object], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        gpulab.acquire(**request_)  # type: ignore[arg-type]


def test_without_a_driver_the_reason_is_a_plain_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPULAB_SIMULATE")
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has a GPU")
    with pytest.raises(NoGpuError) as caught:
        gpulab.acquire()
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
