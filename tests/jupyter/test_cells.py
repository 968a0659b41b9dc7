"""`%%gpu` and `%gpu report` in real kernels on simulated machines whose course is known."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

from gpulab import config
from gpulab.hardware import pausing
from gpulab.telemetry import sampler
from gpulab.telemetry.sampling.watches import watches_path

from .conftest import Place, Session, until

REPORT = "GPU report · "
HOLDS_THE_LOCK = "import ctypes\nctypes.PyDLL(None).usleep(5_000_000)"


class Kernel(Session):
    """A running kernel, and what its cells show."""

    def __init__(self, manager: KernelManager) -> None:
        super().__init__(manager.client())
        self.manager = manager
        self.run("1")  # and what it has to say first

    def kinds(self, code: str) -> list[str]:
        return [message["kind"] for message in self.shown(code)]

    def shown(self, code: str) -> list[dict[str, Any]]:
        """Without noise, and a text that ipykernel sent in pieces, as it does on a busy machine, in one."""
        shown: list[dict[str, Any]] = []
        for message in self.messages(code):
            last = shown[-1] if shown else {}
            if message["kind"] == "stream" and (last.get("kind"), last.get("name")) == (
                "stream",
                message["name"],
            ):
                last["text"] += message["text"]
            elif message["kind"] not in ("status", "execute_input"):
                shown.append(message)
        return shown

    def interrupt_when(self, condition: Callable[[], Any], code: str) -> list[dict[str, Any]]:
        """What a cell shows that is interrupted as soon as this is so."""

        def interrupt() -> None:
            until(condition, "the moment to interrupt")
            self.manager.interrupt_kernel()

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            return self.shown(code)
        finally:
            thread.join()


@contextlib.contextmanager
def running(place: Place, **more: str) -> Iterator[Kernel]:
    """A kernel of this place, and at the end neither it nor its sampler."""
    environment = {**config.inherited(), **place.environment(), **more}
    manager = KernelManager(kernel_name="gpu")
    manager.kernel_spec_manager.kernel_dirs = [str(place.share / "kernels")]
    manager.start_kernel(env=environment)
    kernel = None
    try:
        kernel = Kernel(manager)
        yield kernel
    finally:
        manager.shutdown_kernel(now=True)
        if kernel is not None:
            kernel.client.stop_channels()
        with contextlib.suppress(OSError):
            pid = sampler.running_pid(config.load(environment))
            if pid is not None:
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def place_of_all(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("cells"))
    place.spec("gpu")
    return place


@pytest.fixture(scope="module")
def kernel(place_of_all: Place) -> Iterator[Kernel]:
    """One kernel with a GPU for all tests that leave it as it was."""
    with running(place_of_all) as kernel:
        yield kernel


@pytest.fixture
def own_place(tmp_path: Path) -> Place:
    place = Place(tmp_path / "own")
    place.spec("gpu")
    return place


def test_the_report_comes_below_the_cells_own_output_and_is_bound_to_the_name(kernel: Kernel) -> None:
    printed, value, report = kernel.shown("%%gpu work\nprint('said')\n6 * 7")
    assert printed["text"] == "said\n"
    assert (value["kind"], value["data"]["text/plain"]) == ("execute_result", "42")
    assert report["kind"] == "display_data"
    assert report["data"]["text/plain"].startswith(REPORT)
    assert "<strong>Too short to tell" in report["data"]["text/html"]
    assert kernel.value("work.verdict.kind") == "unknown"


def test_the_report_on_a_cell_that_holds_the_interpreter_lock_has_its_samples(kernel: Kernel) -> None:
    shares = []
    while len(shares) < 3 and max(shares, default=0.0) < 0.95:  # a full machine can keep the sampler waiting
        kernel.run(f"%%gpu held\n{HOLDS_THE_LOCK}")
        samples = json.loads(kernel.value("__import__('json').dumps(held.to_dict()['samples'])"))
        assert samples["due"] >= 25
        shares.append(samples["got"] / samples["due"])
    assert max(shares) >= 0.95


_USE = {"steps": [[0, 40], [0.5, 80], [1, 80]], "repeat": True}
_POWER = {"steps": [[0, 200], [0.5, 400], [1, 400]], "repeat": True}
_HOLD = """
import json, os, time

def hold(memory):
    content = json.load(open(machine))
    own = {"gpu": 0, "pid": os.getpid(), "bound": True, "memory": memory, "gpu_percent": 60}
    stranger = {"gpu": 0, "pid": 1, "memory": "5GiB", "type": "graphics"}
    with open(machine + ".new", "w") as file:
        json.dump({**content, "processes": [own, stranger]}, file)
    os.replace(machine + ".new", machine)
    time.sleep(1.5)
"""


def test_its_figures_are_those_of_the_machine(own_place: Place) -> None:
    device = {"profile": "h100", "utilization": _USE, "power": _POWER}
    own_place.machine = own_place.scenario(epoch=time.time(), devices=[device])
    with running(own_place) as kernel:
        kernel.run(f"machine = {own_place.machine!r}\n{_HOLD}\nhold('2GiB')")
        shown = kernel.run("%%gpu report\nhold('6GiB')\nhold('3GiB')")
        report = json.loads(kernel.value("__import__('json').dumps(report.to_dict())"))
    (device,) = report["devices"]
    assert report["wall_seconds"] == pytest.approx(3.0, abs=0.5)
    assert device["gpu_percent"] == pytest.approx(60, abs=6)
    assert (device["gpu_max"], device["energy_source"]) == (80, "counter")
    assert device["energy_joules"] == pytest.approx(300 * report["wall_seconds"], rel=0.1)
    assert device["own_max_bytes"] == 6 * 2**30
    assert device["own_growth_bytes"] == 2**30
    assert device["memory_max_bytes"] >= 11 * 2**30
    assert report["simulated"] is True
    assert REPORT in shown
    assert "· simulated" in shown


def test_an_exception_has_the_traceback_that_it_has_without_the_line(kernel: Kernel) -> None:
    code = "def broken():\n    return 1 / 0\n\n\nbroken()"
    (plain,) = kernel.shown(f"# %%gpu\n{code}")
    error, report = kernel.shown(f"%%gpu\n{code}")
    assert error["kind"] == "error"
    assert without_numbers(error["traceback"]) == without_numbers(plain["traceback"])
    assert report["data"]["text/plain"].startswith(REPORT)


def without_numbers(traceback: list[str]) -> list[str]:
    """Less the cell's own number, the only thing that may differ."""
    import re

    return [re.sub(r"In\[\d+\]", "In", part) for part in traceback]


def test_what_is_no_python_has_its_error_and_no_report(kernel: Kernel) -> None:
    (error,) = kernel.shown("%%gpu\nx ==== 1")
    assert (error["ename"], "line 2" in error["evalue"]) == ("SyntaxError", True)


@pytest.mark.parametrize(
    "wait",
    ["import time; time.sleep(30)", "import asyncio\nfor _ in range(300):\n    await asyncio.sleep(0.1)"],
    ids=["plain", "await"],
)
def test_an_interrupted_cell_is_interrupted_and_reported_on(
    kernel: Kernel, wait: str, tmp_path: Path
) -> None:
    mark = tmp_path / "runs"
    cell = f"%%gpu\nopen({str(mark)!r}, 'w').close()\n{wait}"
    error, report = kernel.interrupt_when(mark.exists, cell)
    assert error["ename"] in ("KeyboardInterrupt", "CancelledError")
    assert not any("gpulab" in part for part in error["traceback"])
    assert report["data"]["text/plain"].startswith(REPORT)


def test_in_a_pause_a_kernel_with_a_lease_is_told_of_the_pause_and_keeps_its_gpu(own_place: Place) -> None:
    own_place.machine = own_place.scenario(devices=[{"profile": "t4"}])
    with running(own_place) as kernel:
        settings = config.load({**config.inherited(), **own_place.environment()})
        pausing.pause(settings)
        told = str(kernel.shown("%%gpu\nx = 1"))
        assert "paused for this account since" in told
        assert "has no GPU" not in told
        overview = str(kernel.shown("%gpu"))
        assert "This kernel has " in overview
        assert "paused for this account since" in overview
        assert "is given back" in kernel.run("%gpu release")


def test_a_cell_that_is_interrupted_before_it_began_does_not_run(own_place: Place) -> None:
    own_place.machine = own_place.scenario(devices=[{"profile": "t4"}])
    with running(own_place) as kernel:
        settings = config.load({**config.inherited(), **own_place.environment()})
        kernel.run("%gpu release")
        pid = until(lambda: sampler.running_pid(settings), "the sampler")
        os.kill(pid, signal.SIGSTOP)  # then no sample comes
        try:
            until(lambda: sampler.running_pid(settings) == pid, "the office")
            kernel.run("import time; time.sleep(2.6)")  # until its record is an old one
            watches = Path(watches_path(settings))
            error, *_ = kernel.interrupt_when(
                lambda: any(watches.glob("watch-*")), "%%gpu\nprint('ran')\nran = True"
            )
        finally:
            os.kill(pid, signal.SIGCONT)
        assert error["ename"] == "KeyboardInterrupt"
        assert not any("gpulab" in part for part in error["traceback"])
        assert kernel.value("'ran' in globals()") == "False"


def test_a_cell_can_await_and_be_of_the_future(kernel: Kernel) -> None:
    cell = "%%gpu\nfrom __future__ import annotations\nimport asyncio\nawait asyncio.sleep(0, 'waited')"
    value, report = kernel.shown(cell)
    assert value["data"]["text/plain"] == "'waited'"
    assert report["data"]["text/plain"].startswith(REPORT)


def test_a_cell_within_a_cell_has_a_report_of_its_own(kernel: Kernel) -> None:
    cell = "%%gpu outer\nget_ipython().run_cell('%%gpu inner\\n1 / 0')\nget_ipython().run_cell('7')\n8"
    assert kernel.kinds(cell) == [
        *("error", "display_data"),
        *("execute_result", "execute_result", "display_data"),
    ]
    assert kernel.value("outer.start < inner.start < inner.end < outer.end") == "True"


@pytest.mark.parametrize("lines", ["%%gpu\n\n%%time", "%%time\n%%gpu"])
def test_it_goes_with_other_magics_of_the_cell(kernel: Kernel, lines: str) -> None:
    printed, value, report = kernel.shown(f"{lines}\n6 * 7")
    assert "Wall time" in printed["text"]
    assert value["data"]["text/plain"] == "42"
    assert report["data"]["text/plain"].startswith(REPORT)


def test_a_captured_cell_keeps_its_report_with_its_output(kernel: Kernel) -> None:
    assert kernel.kinds("%%capture kept\n%%gpu\nprint(3)") == []
    assert kernel.value("[kept.stdout.strip(), len(kept.outputs)]") == "['3', 1]"


def test_a_program_can_call_it_as_any_cell_magic(kernel: Kernel) -> None:
    assert kernel.kinds("get_ipython().run_cell_magic('gpu', 'called', '6 * 7')") == [
        "execute_result",
        "display_data",
    ]
    assert kernel.value("type(called).__name__") == "Report"


def test_text_that_is_not_run_leaves_no_mark(kernel: Kernel) -> None:
    assert (is_complete(kernel, "%%gpu\nx = (1,"), is_complete(kernel, "%%gpu\nx = 1\n\n")) == (
        "incomplete",
        "complete",
    )
    found = kernel.client.complete("%%gp", 4, reply=True, timeout=30)["content"]["matches"]
    assert "%%gpu" in found
    kernel.run("get_ipython().transform_cell('%%gpu\\n1'); rest = 2")
    assert kernel.kinds("3") == ["execute_result"]


def is_complete(kernel: Kernel, code: str) -> str:
    kernel.client.is_complete(code)
    return str(kernel.client.get_shell_msg(timeout=30)["content"]["status"])


def test_a_wrong_line_is_one_sentence_and_the_help_names_both(kernel: Kernel) -> None:
    (said,) = kernel.shown("%%gpu two names\nprint('ran')")
    assert said["text"] == "UsageError: %%gpu takes one name to bind the report to, not 'two names'.\n"
    (said,) = kernel.shown("%%gpu for\nprint('ran')")
    assert "not 'for'" in said["text"]
    (said,) = kernel.shown("%%gpu\n\n")
    assert "no code to report on" in said["text"]
    text = kernel.run("%gpu help")
    assert "\n%gpu report " in text
    assert "\n%%gpu [NAME] " in text


def test_report_looks_back_at_the_last_cell_that_was_no_question(kernel: Kernel) -> None:
    kernel.run("import time; time.sleep(1.2)")
    kernel.run("%gpu")
    (shown,) = kernel.shown("%gpu report")
    assert shown["kind"] == "execute_result"
    assert shown["data"]["text/plain"].startswith(f"{REPORT}1.2 s")
    kernel.run("%%gpu watched\n0")
    (shown,) = kernel.shown("again = %gpu report\nagain is watched")
    assert shown["data"]["text/plain"] == "True"


def test_without_a_gpu_one_line_says_why_and_the_cell_runs(own_place: Place) -> None:
    own_place.machine = own_place.scenario(
        devices=[{"profile": "t4"}], faults=[{"call": "nvmlInit*", "code": 9}]
    )
    with running(own_place) as kernel:
        value, said = kernel.shown("%%gpu none\n6 * 7")
        assert value["data"]["text/plain"] == "42"
        assert said["text"].startswith("gpulab: no report, because this kernel has no GPU: ")
        assert said["text"].count("\n") == 1
        assert kernel.value("none.devices") == "()"


def test_where_no_sampler_can_start_the_report_says_why_and_the_cell_runs(own_place: Place) -> None:
    (own_place.root / "file").write_text("")
    with running(own_place, GPULAB_DATA_DIR=str(own_place.root / "file" / "data")) as kernel:
        value, report = kernel.shown("%%gpu\n6 * 7")
        assert value["data"]["text/plain"] == "42"
        assert "The sampler cannot be started ([Errno 20]" in report["data"]["text/plain"]


def test_in_a_terminal_the_cell_ends_with_an_empty_line_and_the_report_is_text(own_place: Place) -> None:
    cells = (
        "%load_ext gpulab\n%%gpu seen\nfor i in range(2):\n    print(i)\n\n\nprint(seen.wall_seconds < 60)\n"
    )
    environment = {**config.inherited(), **own_place.environment(), "CUDA_VISIBLE_DEVICES": "0"}
    command = [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor"]
    done = subprocess.run(
        command, input=cells, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    pid = sampler.running_pid(config.load(environment))
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    before, _, after = done.stdout.partition(REPORT)
    assert "0\n1\n" in before
    assert "GPU 0, Tesla T4 (simulated)" in after
    assert "GPU 1" not in after
    assert "True" in after
    assert "Traceback" not in done.stdout + done.stderr
