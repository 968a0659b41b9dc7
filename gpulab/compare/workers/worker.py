"""The process in which one backend computes: `python -m gpulab.compare.workers.worker ADDRESS BACKEND`.

It reads one request a line on its input and answers each with one line of JSON; data and results
are .npy files. It ends when its input does, so it never outlives the process that started it.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from gpulab import config, limits
from gpulab.compare.arrays import load_arrays
from gpulab.compare.backend import Backend
from gpulab.compare.results.decoding import clean, encode
from gpulab.compare.results.records import Sample
from gpulab.compare.timing import stall_clock, timed
from gpulab.compare.workload import workload_at

__all__ = ["Worker", "main"]


class Worker:
    """What the process knows between two requests."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.prepared: Any = None
        self.parameters: dict[str, float] = {}
        self.stalled = stall_clock()

    def start(self) -> dict[str, Any]:
        """Import the library, within the lease's share, and say whether it can compute here."""
        share = config.load().memory_limit
        if share is not None:
            limits.apply(share)
        began = time.perf_counter()
        self.backend.start()
        seconds = time.perf_counter() - began
        reason = self.backend.unusable()
        if reason is not None:
            return {"unusable": reason}
        return {
            "gpu": self.backend.gpu_uuid(),
            "import_seconds": seconds,
            "threads": self.backend.threads(),
            "facts": self.backend.facts(),
            "versions": _versions(self.backend.modules),
        }

    def load(self, folder: str, parameters: dict[str, float]) -> dict[str, Any]:
        """Take up the data of one size."""
        self.prepared = None  # before the next size's is made, for there may not be room for both
        self.parameters = parameters
        self.prepared = self.backend.prepare(load_arrays(folder), parameters, folder)
        return {}

    def verify(self, folder: str) -> dict[str, Any]:
        """One call whose placement is checked and whose results are kept; its time is not a sample."""
        began = time.perf_counter()
        _, inputs, outputs = self._timed()
        seconds = (
            time.perf_counter() - began
        )  # with the wait before it, which in the first call makes the context
        not_placed = self.backend.placement(inputs, self.parameters, outputs)
        self.backend.keep(outputs, folder)
        return {"seconds": seconds, "not_placed": not_placed, "fell_back": self.backend.fell_back()}

    def block(self, repeats: int, warm_up: bool) -> dict[str, Any]:
        """Repeats in a row; caches and clocks are this side's own again after the untimed call."""
        gc.collect()
        if warm_up:
            self._timed()
        samples = []
        for _ in range(repeats):
            sample, inputs, outputs = self._timed()
            del inputs, outputs  # before the next repeat: a GPU's pool would have to hold both
            samples.append(encode(sample))
        return {"samples": samples}

    def _timed(self) -> tuple[Sample, Any, Any]:
        return timed(self.backend, self.prepared, self.parameters, self.stalled)


def _versions(modules: tuple[str, ...]) -> dict[str, str]:
    """The versions of the imported libraries, and of NumPy and SciPy where these were loaded with them."""
    roots = dict.fromkeys([*(name.partition(".")[0] for name in modules), "numpy", "scipy"])
    loaded = ((root, getattr(sys.modules.get(root), "__version__", None)) for root in roots)
    return {root: str(version) for root, version in loaded if version is not None}


def _answer(operation: Callable[..., dict[str, Any]], arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return operation(**arguments)
    except Exception as error:  # noqa: BLE001  the rim: any failure of a library becomes this side's reason
        text = clean(str(error))[:300]
        return {"error": f"{type(error).__name__}: {text}" if text else type(error).__name__}


def _private_channel() -> TextIO:
    """The answers' way out; what libraries print goes to the error output instead."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return channel


def _end_with_parent() -> None:
    """On Linux the kernel ends this process with its parent, even in the middle of a long call."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL


def main(arguments: list[str]) -> int:
    """Answer requests until the input ends."""
    _end_with_parent()
    channel = _private_channel()
    address, backend_name = arguments
    backends = workload_at(address).backends
    worker = Worker(next(backend for backend in backends if backend.name == backend_name))
    operations: dict[str, Callable[..., dict[str, Any]]] = {
        "start": worker.start,
        "load": worker.load,
        "verify": worker.verify,
        "block": worker.block,
    }
    for line in sys.stdin:
        request = json.loads(line)
        answer = _answer(operations[request.pop("operation")], request)
        print(json.dumps(answer), file=channel, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
