"""Nothing of gpulab's starts the driver: a forked child could then never use CUDA.

The driver's library is a small one made here, which notes who loads it and who calls it and has no
device; the frameworks are real.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FRAMEWORKS = {
    name: module
    for name, module in {
        "torch": "torch",
        "tensorflow": "tensorflow",
        "jax": "jax",
        "cupy": "cupy",
        "rmm": "rmm",
        "numba_cuda": "numba.cuda",
    }.items()
    if importlib.util.find_spec(name) is not None
}
COMPILER = shutil.which("cc")
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(not FRAMEWORKS, reason="no framework is installed; `make test-frameworks` runs this"),
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler (cc) to make the library with"),
]
LIBRARY = """
#include <stdio.h>
#include <stdlib.h>
static void note(const char *what) {
    const char *name = getenv("DRIVER_LOG");
    FILE *file = name ? fopen(name, "a") : NULL;
    if (file) { fprintf(file, "%s\\n", what); fclose(file); }
}
__attribute__((constructor)) static void loaded(void) { note("loaded"); }
int cuInit(unsigned int flags) { note("cuInit"); return 100; }
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuDeviceGetCount(int *count) { note("cuDeviceGetCount"); *count = 0; return 100; }
int cuGetProcAddress_v2(const char *name, void **f, int v, unsigned long flags, int *found) {
    note(name); *f = NULL; return 500;
}
"""


@pytest.fixture
def driver_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "driver.c").write_text(LIBRARY)
    library = tmp_path / "libcuda.so.1"
    subprocess.run(
        [COMPILER or "cc", "-shared", "-fPIC", "-w", "-o", library, tmp_path / "driver.c"], check=True
    )
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("DRIVER_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    return tmp_path / "log"


def test_the_log_notices_who_starts_the_driver(
    driver_log: Path, answer_of: Callable[[str], dict[str, Any]]
) -> None:
    answer_of("import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)")
    assert driver_log.read_text().split() == ["loaded", "cuInit"]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_import_under_a_limit_asks_the_driver_nothing_that_it_does_not_ask_without(
    driver_log: Path, answer_of: Callable[[str], dict[str, Any]], name: str
) -> None:
    asked = []
    for limit in ("", "limits.apply(8 * 2**30, 80 * 2**30)\n"):
        driver_log.write_text("")
        answer_of(f"{limit}import {FRAMEWORKS[name]}\nlimits.report()\nlimits.apply(None)\n")
        asked.append([line for line in driver_log.read_text().split() if line != "loaded"])
    assert asked[0] == asked[1]


def test_a_forked_child_follows_a_limit_of_its_own(answer_of: Callable[[str], dict[str, Any]]) -> None:
    name = next(iter(FRAMEWORKS.values()))
    answer = answer_of(
        f"""
limits.apply(8 * 2**30, 80 * 2**30)
import {name}
child = os.fork()
if child == 0:
    limits.apply(4 * 2**30, 80 * 2**30)
    os._exit(0 if limits.asked().memory_bytes == 4 * 2**30 else 1)
answer["child"] = os.waitpid(child, 0)[1]
answer["parent"] = limits.asked().memory_bytes
"""
    )
    assert answer["child"] == 0
    assert answer["parent"] == 8 * 2**30
