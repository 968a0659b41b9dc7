"""Works one after the other in one thread, and side by side as soon as one of them takes its time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from gpulab.hardware.guarded import in_turn

PATIENCE = 0.05
STARVED = """
import resource
from gpulab.hardware.guarded import in_turn
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**20, resource.RLIM_INFINITY))
calls = in_turn([lambda: 1, lambda: 2], 0.01)
print([(call.is_done(), type(call.error).__name__, call.value) for call in calls])
"""


def test_quick_works_share_one_thread() -> None:
    calls = in_turn([threading.get_ident] * 20, patience=30.0)
    assert all(call.wait(time.monotonic() + 10) for call in calls)
    assert len({call.value for call in calls}) == 1
    assert calls[0].value != threading.get_ident()


def test_works_that_hang_hold_up_no_other_and_come_back() -> None:
    end = threading.Event()
    works = [end.wait, lambda: "first", end.wait, end.wait, lambda: "second"]
    calls = in_turn(works, PATIENCE)
    assert [call.wait(time.monotonic() + 10) for call in calls if call in (calls[1], calls[4])] == [True] * 2
    assert [call.is_done() for call in calls] == [False, True, False, False, True]
    assert (calls[1].value, calls[4].value) == ("first", "second")
    end.set()
    assert all(call.wait(time.monotonic() + 10) for call in calls)


def test_the_time_of_each_counts_from_its_own_turn() -> None:
    end = threading.Event()
    slow, late = in_turn([end.wait, end.wait], PATIENCE)
    assert slow.seconds() > late.seconds()
    end.set()


def test_an_error_in_one_is_its_own() -> None:
    broken, sound = in_turn([lambda: 1 // 0, lambda: 7], PATIENCE)
    assert sound.wait(time.monotonic() + 10)
    assert isinstance(broken.error, ZeroDivisionError)
    assert (sound.value, sound.error) == (7, None)


def test_where_no_thread_can_be_started_each_work_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARVED], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[(True, 'RuntimeError', None), (True, 'RuntimeError', None)]"


def test_nothing_to_do_is_done() -> None:
    assert in_turn([], PATIENCE) == []
