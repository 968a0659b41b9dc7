"""Kernels in the queue: at once with a ticket, attached when their turn has come, gone with their kernel."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from types import SimpleNamespace

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec
from nbclient import NotebookClient

from gpulab import config
from gpulab.allocation import leases, tickets
from gpulab.allocation import waiting as waiting_for
from gpulab.allocation.policy import Request
from gpulab.jupyter import turn
from gpulab.jupyter.attendant import Attendant
from gpulab.jupyter.provisioner import GpuProvisioner

FIRST = (
    "gpulab: this kernel waits for 1 GPU: place {} of {} in the queue.\n"
    "Go on without: it is attached before the first cell after its turn. `%gpu wait` waits in sight.\n"
)
# Mapped as CUDA's own library would be; what counts is that it is there.
LOAD_LIBCUDA = """
import mmap, tempfile, pathlib
library = pathlib.Path(tempfile.mkdtemp()) / "libcuda.so.1"
library.write_bytes(b"x" * 4096)
with open(library, "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
"""


@pytest.fixture
def one_gpu(place, monkeypatch):
    """A machine of one GPU, and its UUID."""
    place.machine = place.scenario(devices=[{"profile": "t4"}])
    monkeypatch.setenv("GPULAB_SIMULATE", place.machine)
    from gpulab.hardware.observe import observe

    return observe(max_age=0).devices[0].uuid


@pytest.fixture
def holder(place, one_gpu):
    """Somebody who has the only GPU until `give_up()`."""
    with leases.guard(place.leases):
        held = leases.take(
            place.leases, gpus=(one_gpu,), mode="exclusive", memory_bytes=None, priority="normal"
        )
    yield held
    held.give_up()


def waiting(place):
    return tickets.live_tickets(place.leases)


def until_told(session, text):
    """The message that says it, with the id of the request it belongs to; other processes' time is theirs."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        message = session.client.get_iopub_msg(timeout=30)
        if text in str(message["content"]):
            return message
    raise AssertionError(f"nobody said {text!r}")


def run_in_background(session, code):
    """Ask for a cell and do not wait for its end."""
    return session.client.execute(code, allow_stdin=False)


def finish(session, request):
    """Wait for the end of such a cell."""
    while session.client.get_shell_msg(timeout=30)["parent_header"]["msg_id"] != request:
        pass


def test_on_a_full_machine_a_kernel_starts_at_once_says_its_place_once_and_gets_the_gpu_at_its_turn(
    place, start, holder, one_gpu
):
    with place.talk(start()) as session:
        assert session.run("1") == FIRST.format(1, 1) + "1"
        assert session.run("2") == "2"
        assert session.mask() == ""
        (ticket,) = waiting(place)
        assert ticket.pid == session.pid()
        assert ticket.kernel_id is not None
        last = run_in_background(session, "3")
        finish(session, last)
        holder.give_up()
        told = until_told(session, "your turn has come: Tesla T4 (simulated), GPU-")
        assert told["parent_header"]["msg_id"] == last
        assert session.run("4").startswith("gpulab: Tesla T4 (simulated), GPU-")
        assert session.mask() == one_gpu
        assert (place.lease().id, place.lease().pid) == (ticket.id, session.pid())
        assert session.run("5") == "5"


def test_no_running_cell_sees_its_environment_change(place, start, holder, one_gpu):
    with place.talk(start()) as session:
        session.run("import os, time")
        busy = run_in_background(
            session,
            "from gpulab.jupyter import turn\nprint('running')\n"
            "while turn.current().lease is None: time.sleep(0.01)\n"
            "print('seen:', repr(os.environ['CUDA_VISIBLE_DEVICES']))",
        )
        until_told(session, "running\\n")
        holder.give_up()
        assert until_told(session, "seen: ")["content"]["text"] == "seen: ''\n"
        finish(session, busy)
        assert session.mask() == one_gpu


def test_where_cuda_has_started_the_gpu_is_kept_for_a_restart_which_has_it(place, start, holder, one_gpu):
    manager = start()
    with place.talk(manager) as session:
        session.run(LOAD_LIBCUDA)
        (ticket,) = waiting(place)
        holder.give_up()
        until_told(session, "restart the kernel: Tesla T4 (simulated)")
        assert session.mask() == ""
        assert "Restart the kernel: " in session.run("%gpu")
    manager.restart_kernel()
    with place.talk(manager) as session:
        assert session.run("1").startswith("gpulab: Tesla T4 (simulated), GPU-")
        assert session.mask() == one_gpu
        assert place.lease().id == ticket.id
        assert place.lease().pid == session.pid()


def test_a_gpu_that_is_kept_in_vain_is_given_back_and_the_kernel_says_so(place, start, holder):
    with place.talk(start()) as session:
        session.run(LOAD_LIBCUDA + "from gpulab.jupyter import turn\nturn.KEEP_SECONDS = 0.3")
        holder.give_up()
        until_told(session, "without a restart of this kernel and was given back")
        assert place.live() == ()
        assert waiting(place) == ()
        assert "was given back; after a restart the kernel asks anew" in session.run("%gpu")
        assert "CUDA has started in this kernel" in session.run("%gpu wait")


def test_a_restart_keeps_the_number_and_the_place(place, start, holder):
    first, second = start(), start()
    with place.talk(first) as one, place.talk(second) as two:
        assert one.run("1") == FIRST.format(1, 2) + "1"
        assert two.run("1") == FIRST.format(2, 2) + "1"
        before = waiting(place)
    first.restart_kernel()
    with place.talk(first) as one:
        assert one.run("1") == FIRST.format(1, 2) + "1"
        after = waiting(place)
        assert [(t.id, t.number) for t in after] == [(t.id, t.number) for t in before]
        assert after[0].pid == one.pid() != before[0].pid


def test_a_turn_that_comes_while_the_kernel_cannot_answer_is_taken_by_the_restart(
    place, start, holder, one_gpu
):
    manager = start()
    with place.talk(manager) as session:
        (ticket,) = waiting(place)
        os.kill(session.pid(), signal.SIGSTOP)
        holder.give_up()
    manager.restart_kernel(now=True)
    assert place.lease().id == ticket.id
    with place.talk(manager) as session:
        assert session.mask() == one_gpu


def test_the_ticket_ends_with_its_kernel(place, start, holder):
    manager = start()
    assert len(waiting(place)) == 1
    manager.shutdown_kernel()
    assert waiting(place) == ()
    place.until(lambda: place.leases.names("ticket-") == [], "the sweep")


def test_a_kernel_killed_while_it_waits_has_its_place_after_a_restart(place, start, holder):
    manager = start()
    with place.talk(manager) as session:
        (ticket,) = waiting(place)
        os.kill(session.pid(), signal.SIGKILL)
        place.until(lambda: not manager.is_alive(), "the kernel's death")
    manager.restart_kernel(now=True)
    assert [t.id for t in waiting(place)] == [ticket.id]
    manager.shutdown_kernel(now=True)
    assert waiting(place) == ()


def test_a_server_restarts_a_killed_waiter_in_its_place_and_killed_itself_leaves_no_ticket(
    new_server, holder, place
):
    server = new_server()
    kernel = server.start()
    with server.talk(kernel) as session:
        (before,) = waiting(place)
        os.kill(session.pid(), signal.SIGKILL)
    place.until(lambda: [t for t in waiting(place) if t.pid != before.pid], "the kernel's next life")
    with server.talk(kernel) as session:
        assert session.run("1") == FIRST.format(1, 1) + "1"
        (after,) = waiting(place)
        assert (after.id, after.number) == (before.id, before.number)
        server.process.kill()
        place.until(lambda: waiting(place) == (), "the end of the ticket")


def test_a_server_answers_and_ends_while_kernels_wait(new_server, holder, place):
    server = new_server()
    kernels = [server.start() for _ in range(2)]
    assert server.kernels() == kernels
    assert [t.number for t in waiting(place)] == [1, 2]
    server.shut_down(kernels[0])
    assert [t.number for t in waiting(place)] == [2]
    assert server.end() == 0
    assert waiting(place) == ()


def test_a_launch_that_fails_and_a_start_that_is_cancelled_leave_no_ticket(place, start, holder):
    place.spec("missing", ["/no/such/program", "--IPKernelApp.extra_extensions=gpulab"])
    with pytest.raises(FileNotFoundError):
        start("missing")
    assert waiting(place) == ()

    async def cancelled() -> None:
        spec = KernelSpec(argv=["true", "--IPKernelApp.extra_extensions=gpulab"])
        task = asyncio.create_task(GpuProvisioner(kernel_id="k", kernel_spec=spec, parent=None).pre_launch())
        while not any(thread.name == "gpulab" for thread in threading.enumerate()):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    for thread in threading.enumerate():
        if thread.name == "gpulab":
            thread.join()
    assert waiting(place) == ()


def test_a_kernel_that_could_not_look_after_a_ticket_takes_none(place, start, holder):
    place.spec("other", ["/bin/sh", "-c", "exec sleep 600"])
    manager = start("other")
    assert waiting(place) == ()
    with open(f"/proc/{manager.provisioner.pid}/environ") as file:
        environment = dict(entry.split("=", 1) for entry in file.read().split("\0") if entry)
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert "GPULAB_TICKET" not in environment


def test_a_notebook_run_without_a_user_goes_on_without_a_gpu_and_leaves_the_queue(place, holder):
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print('worked')")])
    NotebookClient(book, kernel_name="gpu", timeout=60).execute()
    assert "".join(o.text for o in book.cells[0].outputs) == FIRST.format(1, 1) + "worked\n"
    assert waiting(place) == ()


def test_a_kernel_that_gave_its_gpu_back_and_restarts_asks_anew(place, start, one_gpu):
    manager = start()
    with place.talk(manager) as session:
        session.run("%gpu release")
    with leases.guard(place.leases):
        other = leases.take(
            place.leases, gpus=(one_gpu,), mode="exclusive", memory_bytes=None, priority="low"
        )
    manager.restart_kernel(now=True)
    with place.talk(manager) as session:
        assert session.run("1") == FIRST.format(1, 1) + "1"
        other.give_up()
        until_told(session, "your turn has come")
        session.run("1")
        assert session.mask() == one_gpu


def test_wait_shows_the_place_and_who_holds_and_ends_with_the_gpu(place, start, holder, one_gpu):
    with place.talk(start()) as session:
        session.run("1")
        request = run_in_background(session, "%gpu wait")
        shown = until_told(session, "This kernel waits for 1 GPU: place 1 of 1")["content"]
        assert "leased by " in shown["data"]["text/plain"]
        assert "<table>" in shown["data"]["text/html"]
        assert "color" not in shown["data"]["text/html"]
        update = until_told(session, "place 1 of 1, for ")
        assert update["msg_type"] == "update_display_data"
        assert update["content"]["transient"] == shown["transient"]
        holder.give_up()
        until_told(session, "is yours")
        finish(session, request)
        assert session.mask() == one_gpu
        assert "this kernel waits for nothing: it has lease" in session.run("%gpu wait")


def test_an_interrupt_ends_the_waiting_and_keeps_the_place(place, start, holder, one_gpu):
    manager = start()
    with place.talk(manager) as session:
        session.run("1")
        request = run_in_background(session, "%gpu wait\nprint('and on')")
        until_told(session, "This kernel waits for 1 GPU")
        manager.interrupt_kernel()
        until_told(session, "goes on without a GPU; its place is kept")
        until_told(session, "and on")
        finish(session, request)
        assert len(waiting(place)) == 1
        holder.give_up()
        until_told(session, "your turn has come")
        session.run("1")
        assert session.mask() == one_gpu


def test_rules_that_are_being_edited_do_not_keep_a_kernel_from_its_turn(place, holder, one_gpu, monkeypatch):
    monkeypatch.setattr(turn, "_SETTINGS_EVERY", 0.0)
    settings = config.load()
    shell = SimpleNamespace(events=SimpleNamespace(register=lambda *_: None))
    attendant = Attendant(shell)
    broken = os.path.join(os.environ["XDG_CONFIG_HOME"], "gpulab", "config.toml")
    os.makedirs(os.path.dirname(broken))
    begun = turn.begin(waiting_for.enqueue(Request(), settings), settings, attendant)
    try:
        with open(broken, "w", encoding="utf-8") as file:
            file.write("devices = [")
        holder.give_up()
        assert begun.news.wait(15)
        assert begun.lease is not None
        assert begun.lease.gpus == (one_gpu,)
    finally:
        begun.give_up()
        os.unlink(broken)


def test_release_leaves_the_queue_and_wait_takes_a_new_place_with_its_options(place, start, holder):
    manager = start()
    with place.talk(manager) as session:
        session.run("1")
        assert "already waits for 1 GPU" in session.run("%gpu wait --memory 2GiB")
        assert "has left the queue" in session.run("%gpu release")
        assert waiting(place) == ()
        assert "it has left the queue" in session.run("%gpu")
        request = run_in_background(session, "%gpu wait --memory 2GiB --priority low")
        until_told(session, "waits for 2.0 GiB of a GPU: place 1 of 1")
        (ticket,) = waiting(place)
        assert (ticket.memory_bytes, ticket.priority) == (2 * 2**30, "low")
        holder.give_up()
        until_told(session, "2.0 GiB of Tesla T4 (simulated)")
        finish(session, request)


def test_acquire_waits_in_the_queue_as_long_as_it_was_told(place, start, holder):
    place.spec("cpu", on_full="cpu")
    with place.talk(start("cpu")) as session:
        session.run("1")
        assert "1 GPU was asked for and none of 1 is free" in session.run("%gpu acquire")
        late = session.run("%gpu acquire --wait 0.3\nprint('and on')")
        assert "gpulab: After 300 ms of waiting there is no GPU for this kernel" in late
        assert "and on\n" in late
        assert waiting(place) == ()
        request = run_in_background(session, "%gpu acquire --wait 30")
        until_told(session, "This kernel waits for 1 GPU: place 1 of 1")
        holder.give_up()
        until_told(session, "is yours")
        finish(session, request)
        assert len(place.live()) == 1


def test_gpu_shows_the_queue_and_explain_the_reason_of_each_gpu(place, start, holder):
    with place.talk(start()) as session:
        session.run("1")
        shown = session.run("%gpu").splitlines()
        assert shown[0].startswith("This kernel waits for 1 GPU: place 1 of 1 in the queue.")
        assert shown[2].split() == ["place", "waits", "for", "priority", "since", "who"]
        assert shown[3].endswith("this kernel")
        own = session.run("%gpu explain").splitlines()
        assert own[0] == "For 1 GPU, as things stand now:"
        assert own[1] == "By policy idlest, best first:"
        assert "leased by " in own[2]
        given = session.run("%gpu explain --memory 4GiB --policy spread")
        assert "For 4.0 GiB of a GPU" in given
        assert "By policy spread" in given


def test_acquire_beside_the_queue_is_refused_so_that_nobody_waits_behind_himself(place, start, holder):
    with place.talk(start()) as session:
        session.run("1")
        refused = session.run("import gpulab; gpulab.acquire(wait=60)")
        assert "This kernel waits for 1 GPU: place 1 of 1 in the queue." in refused
        assert "`%gpu release` leaves the queue" in refused
        session.run("%gpu release")
        assert "none of 1 is free" in session.run("gpulab.acquire()")


def test_a_process_over_its_share_is_told_so_once(place, start, one_gpu, monkeypatch):
    place.spec("none", on_full="cpu", gpus=9)
    with place.talk(start("none")) as session:
        session.run("1")
        pid = session.pid()
        with open(place.machine, "w") as file:
            file.write(
                '{"devices": [{"profile": "t4"}], '
                f'"processes": [{{"gpu": 0, "pid": {pid}, "memory": "6GiB"}}]}}'
            )
        last = run_in_background(session, "%gpu acquire --memory 4GiB")
        told = until_told(session, "of GPU memory, more than its share of 4.0 GiB")
        assert told["parent_header"]["msg_id"] == last
        assert session.run("1") == "1"
