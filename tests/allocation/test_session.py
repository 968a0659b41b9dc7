"""acquire, current and release, as a notebook's user meets them."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
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
from gpulab.allocation.policy import Request
from gpulab.allocation.tickets import waiting_now
from gpulab.errors import LeaseError, NoFreeGpuError, NoGpuError, RequestError
from gpulab.hardware import pausing

FRAMEWORKS = (
    "CUPY_GPU_MEMORY_LIMIT",
    "GPULAB_LIMIT_VARIABLES",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
)


@pytest.fixture(autouse=True)
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    scenario = tmp_path / "machine.json"
    scenario.write_text(json.dumps({"devices": [{"profile": "h100", "count": 2, "utilization": 0}]}))
    monkeypatch.setenv("GPULAB_SIMULATE", str(scenario))
    # acquire() writes these itself; setting them here makes monkeypatch restore them.
    masks = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPULAB_OUTER_MASK")
    for name in (*config.LEASE_VARIABLES, *masks, *FRAMEWORKS):
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


def test_a_call_that_does_not_wait_is_not_held_up_by_a_thread_that_does() -> None:
    taker = "import gpulab; gpulab.acquire(2); print(flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", taker], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    other.stdout.readline()
    waiter = threading.Thread(target=gpulab.acquire, kwargs={"wait": None})
    waiter.start()

    def call_until_the_thread_waits() -> None:
        while True:
            with contextlib.suppress(NoFreeGpuError):
                gpulab.acquire()

    try:
        with pytest.raises(LeaseError, match="Another thread of this process is waiting for a GPU"):
            call_until_the_thread_waits()
    finally:
        other.kill()
        other.communicate()
    waiter.join(timeout=60)
    assert gpulab.current() is not None


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


def test_in_a_pause_a_process_without_cuda_releases_and_one_with_it_is_told_to_try_again(
    tmp_path: Path,
) -> None:
    lease = gpulab.acquire()
    pausing.pause(config.load())
    library = tmp_path / "libcuda.so.1"
    library.write_bytes(b"\0" * 4096)
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ),
        pytest.raises(LeaseError, match="in a pause and just after one; try again in a few seconds"),
    ):
        lease.release()
    assert lease.is_held()
    lease.release()
    assert live_leases(config.load()) == ()


def test_a_process_that_nvml_names_cannot_release(two_gpus: Path) -> None:
    lease = gpulab.acquire()
    index = next(d.index for d in gpulab.snapshot().devices if d.uuid == lease.gpus[0])
    machine = json.loads(two_gpus.read_text())
    machine["processes"] = [{"gpu": index, "pid": os.getpid(), "memory": "1GiB"}]
    two_gpus.write_text(json.dumps(machine))
    with pytest.raises(LeaseError, match="restart or shut down the kernel"):
        lease.release()
    assert lease.is_held()


def test_a_child_of_the_holder_is_told_how_to_get_a_gpu_of_its_own() -> None:
    lease = gpulab.acquire()
    code = (
        "import gpulab, gpulab.errors\n"
        "try:\n    gpulab.acquire()\nexcept gpulab.errors.LeaseError as error:\n    print(error)\n"
    )
    refusal = python(code).stdout
    assert f"works on lease {lease.id} of its parent process" in refusal
    assert "`gpulab run`" in refusal


def test_a_child_outlives_its_parents_lease_and_then_acquires_its_own() -> None:
    lease = gpulab.acquire()
    code = (
        "import gpulab, sys\nprint(gpulab.current().id, flush=True)\nsys.stdin.readline()\n"
        "print(gpulab.current())\nprint(gpulab.acquire().is_held())\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == lease.id
    lease.release()
    assert child.communicate("\n", timeout=30)[0].split() == ["None", "True"]


def test_a_fork_while_another_thread_acquires_does_not_lock_the_child() -> None:
    with session._acquiring:  # as a thread of the parent holds it in that instant
        child = os.fork()
        if child == 0:
            held = gpulab.acquire()
            os._exit(0 if held.is_held() else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_the_wrong_process_cannot_release_after_a_fork() -> None:
    lease = gpulab.acquire()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            lease.release()
        except LeaseError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"belongs to another process" in os.read(read, 1000)
    assert lease.is_held()


def test_a_lease_that_was_given_back_inside_a_kernel_is_gone_for_the_provisioner_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The provisioner shares the descriptor; before a restart it sees that it must take anew."""
    provisioned = session.grant(Request(), gpulab.snapshot(), config.load())
    assert provisioned.held is not None
    monkeypatch.setenv("GPULAB_LEASE", provisioned.id)
    monkeypatch.setenv("GPULAB_LEASE_FD", str(os.dup(provisioned.held.fd)))
    lease = gpulab.current()
    assert lease is not None
    assert lease.id == provisioned.id
    lease.release()
    assert not provisioned.is_held()
    assert live_leases(config.load()) == ()
    assert gpulab.current() is None
    again = gpulab.acquire()
    assert again.id != provisioned.id
    assert not provisioned.is_held()


def test_a_lease_taken_elsewhere_becomes_this_process_own_by_attach() -> None:
    lease = session.grant(Request(memory_bytes=8 * 2**30), gpulab.snapshot(), config.load())
    assert gpulab.current() is None
    session.attach(lease)
    assert gpulab.current() is lease
    assert os.environ["CUDA_VISIBLE_DEVICES"] == lease.gpus[0]
    assert os.environ["GPULAB_MEMORY_LIMIT"] == str(8 * 2**30)
    assert 0 < int(os.environ["CUPY_GPU_MEMORY_LIMIT"]) < 8 * 2**30  # less what CUDA needs itself


def test_a_whole_gpu_after_a_share_is_no_longer_capped() -> None:
    gpulab.acquire(memory="8GiB").release()
    gpulab.acquire()
    assert "CUPY_GPU_MEMORY_LIMIT" not in os.environ
    assert "GPULAB_MEMORY_LIMIT" not in os.environ
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def test_acquire_waits_in_the_queue_and_is_served() -> None:
    taker = "import gpulab; gpulab.acquire(2); print(flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", taker], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    other.stdout.readline()
    freeing = threading.Thread(target=lambda: (_until_somebody_waits(), other.communicate("\n")))
    freeing.start()
    lease = gpulab.acquire(wait=30)
    freeing.join()
    assert lease.is_held()
    assert gpulab.current() is lease
    assert waiting_now(config.load()) == ()


def _until_somebody_waits() -> None:
    while not waiting_now(config.load()):
        threading.Event().wait(0.01)


def test_ctrl_c_leaves_the_queue_and_a_later_call_may_wait_again() -> None:
    held = session.grant(Request(gpus=2), gpulab.snapshot(), config.load())

    def interrupt() -> None:
        _until_somebody_waits()
        os.kill(os.getpid(), signal.SIGINT)

    for _ in range(2):
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            gpulab.acquire(wait=None)
        thread.join()
        assert waiting_now(config.load()) == ()
    assert held.held is not None
    held.held.give_up()


def test_ctrl_c_just_after_the_turn_has_come_leaves_no_lease_that_nobody_can_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gpulab import limits

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as now:
        now.setattr(limits, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            gpulab.acquire()
    assert gpulab.current() is None
    assert live_leases(config.load()) == ()
    assert gpulab.acquire().is_held()


def test_a_file_that_breaks_meanwhile_neither_costs_the_turn_nor_keeps_the_lease(tmp_path: Path) -> None:
    lease = gpulab.acquire()
    broken = tmp_path / "config" / "gpulab" / "config.toml"
    broken.parent.mkdir(parents=True)
    broken.write_text("devices = [")
    assert lease.environment()["CUDA_VISIBLE_DEVICES"] == lease.gpus[0]
    assert lease.held is not None
    lease.held.give_up()
    session.detach(lease)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    broken.unlink()


@pytest.mark.parametrize(
    ("request_", "error", "sentence"),
    [
        ({"gpus": 3}, NoGpuError, "this machine has 2 to hand out; ask for at most 2"),
        ({"memory": "8Gigs"}, RequestError, "'8Gigs' is not a size"),
        ({"policy": "best"}, RequestError, "There is no policy 'best'"),
        ({"policy": 5}, RequestError, "There is no policy 5"),
        ({"gpus": "2"}, RequestError, "'2' GPUs cannot be handed out"),
        ({"gpus": 1.5}, RequestError, "1.5 GPUs cannot be handed out"),
        ({"memory": b"8"}, RequestError, "b'8' is not a size"),
        ({"wait": []}, RequestError, "is not a duration"),
        ({"policy": "name:\tH100"}, RequestError, r"There is no policy 'name:\\tH100'"),
        ({"policy": "name:" + 100 * " " + "H100"}, RequestError, "There is no policy"),
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
