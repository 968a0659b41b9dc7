"""The parent's end of a worker process: every way in which it can go wrong becomes one sentence."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from gpulab import config
from gpulab.compare.results.decoding import clean, decode
from gpulab.compare.results.records import Sample
from gpulab.errors import WorkloadError

__all__ = ["WorkerProcess"]


class WorkerProcess:
    """One backend in a process of its own; `deadline` bounds every request (monotonic seconds).

    `environment` is the process's; None means this process's own.
    """

    def __init__(
        self, workload: str, backend: str, deadline: float, environment: dict[str, str] | None = None
    ) -> None:
        self.name = backend
        self.deadline = deadline
        self.gpu: str | None = None
        """The UUID of its GPU as CUDA reports it; see `strangers.used_device`."""
        environment = config.inherited() if environment is None else environment
        self.mask = environment.get("CUDA_VISIBLE_DEVICES")
        self._errors = tempfile.TemporaryFile(mode="w+b")  # noqa: SIM115  closed in close()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpulab.compare.workers.worker", workload, backend],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # a notebook's interrupt goes to the whole group: it is ours to end
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True, name=f"gpulab-{backend}")
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def block(self, repeats: int, *, warm_up: bool) -> list[Sample]:
        """So many timed repeats. Raises WorkloadError with the reason."""
        answer = self.ask("block", repeats=repeats, warm_up=warm_up)
        return list(decode(tuple[Sample, ...], answer["samples"], f"the answer of {self.name}"))

    def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and wait for its answer. Raises WorkloadError if none comes, or a failure does.

        A worker that is late is killed: the call inside it cannot be stopped in any other way.
        """
        try:
            print(json.dumps({"operation": operation, **arguments}), file=self._process.stdin, flush=True)
            line = self._answers.get(timeout=max(0.1, self.deadline - time.monotonic()))
        except queue.Empty:
            self.close()
            raise WorkloadError(
                f"{self.name} was stopped: its call was not done when the time was up."
            ) from None
        except OSError:
            line = ""
        if not line:
            raise WorkloadError(self._epitaph())
        answer = json.loads(line)
        if "error" in answer:
            raise WorkloadError(f"{self.name} failed with {answer['error']}.")
        return dict(answer)

    def close(self) -> None:
        """End the process and all it started. Never raises; twice is fine."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        self._listener.join(timeout=1)  # it ends with the answers, unless a grandchild still holds them
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError, ValueError):
                if pipe is not None:
                    pipe.close()

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            self._answers.put(line)
        self._answers.put("")

    def _epitaph(self) -> str:
        """How the process ended, with the last line it wrote."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return f"{self.name} closed its answers but did not end; measure again."
        if code == -9:
            return f"{self.name} was killed (SIGKILL), most often for lack of memory; try a smaller size."
        if code < 0:
            return f"{self.name} was ended by {signal.Signals(-code).name}; try a smaller size."
        return f"{self.name} ended by itself with code {code}{self._last_words()}"

    def _last_words(self) -> str:
        try:
            self._errors.seek(0)
            lines = self._errors.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        except (OSError, ValueError):
            return "."
        return f": {clean(lines[-1])[:200]}" if lines else "."
