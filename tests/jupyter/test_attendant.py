"""The attendant in a real kernel: where its sentences appear, and that its duties harm nobody."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

from IPython.core.events import EventManager, available_events

from gpulab.jupyter.attendant import DONE, Attendant

HERE = "from gpulab.jupyter import attendant as a; at = a.current(); import threading, time\n"
LATER = HERE + "threading.Timer({after}, at.say, [{text!r}]).start()"


def _shown(session, text):
    """The next message that says `text`, with the id of the request that it belongs to."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        message = session.client.get_iopub_msg(timeout=30)
        if text in str(message["content"]):
            return message["msg_type"], message["parent_header"]["msg_id"]
    raise AssertionError(text)


def test_a_sentence_appears_under_the_cell_that_ran_last_though_it_has_long_ended(place, start):
    with place.talk(start()) as session:
        session.run("1")
        session.run(LATER.format(after=0.5, text="it is your turn."))
        last = session.client.execute("2")
        session.client.get_shell_msg(timeout=30)
        assert _shown(session, "gpulab: it is your turn.") == ("display_data", last)


def test_while_a_cell_runs_a_sentence_appears_under_it(place, start):
    with place.talk(start()) as session:
        session.run("1")
        shown = session.run(LATER.format(after=0, text="now.") + "\ntime.sleep(0.5); print('end')")
        assert shown == "gpulab: now.end\n"


def test_before_any_cell_has_run_a_sentence_waits_for_the_first_one_and_is_said_once(place, start):
    argv_file = place.share / "kernels" / "gpu" / "kernel.json"
    code = "from gpulab.jupyter import attendant; attendant.current().say('early.')"
    argv_file.write_text(
        argv_file.read_text().replace(
            '"--IPKernelApp.extra_extensions=gpulab"',
            f'"--IPKernelApp.extra_extensions=gpulab", "--IPKernelApp.exec_lines={code}"',
        )
    )
    with place.talk(start()) as session:
        assert "gpulab: early.\n" in session.run("1")
        assert session.run("2") == "2"


def test_a_duty_that_fails_goes_on_one_that_is_done_ends_and_the_thread_with_the_last(until):
    shell = SimpleNamespace()
    shell.events = EventManager(shell, available_events)
    attendant, calls = Attendant(shell), []

    def failing() -> object:
        calls.append("failing")
        if len(calls) == 3:
            return DONE
        raise RuntimeError("broken")

    def attends() -> bool:
        return any(thread.name == "gpulab-attendant" for thread in threading.enumerate())

    attendant.attend(failing, every=0.01)
    until(lambda: not attends(), "the thread's end")
    assert calls == ["failing"] * 3
    attendant.attend(lambda: calls.append("again") or DONE, every=1)
    until(lambda: not attends(), "the next thread's end")
    assert calls[3:] == ["again"]


def test_an_act_before_a_cell_comes_before_the_cell_and_not_before_cells_within_it(place, start):
    with place.talk(start()) as session:
        session.run("1")
        session.run(HERE + "at.before_cell(lambda: print('before'))\nat.before_cell(lambda: 1 / 0)")
        assert session.run("print('cell')") == "before\ncell\n"
        assert session.run("get_ipython().run_cell('print(1)'); print('end')") == "before\n1\nend\n"


def test_a_kernel_ends_at_once_though_a_duty_hangs(place, start):
    manager = start()
    with place.talk(manager) as session:
        session.run(HERE + "at.attend(lambda: time.sleep(600), every=1)")
        session.client.shutdown()
        place.until(lambda: not manager.is_alive(), "the kernel's end", 10)
