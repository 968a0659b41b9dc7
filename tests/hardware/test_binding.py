"""NVML through pynvml: a real shared library is read rightly, and a wrong pynvml is named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = r"""
#include <string.h>
#include <stddef.h>
typedef struct { char unused; } Device;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute; } Process;
static Device gpu;
static int started;
static int text(const char *from, char *to, unsigned room) {
    if (strlen(from) >= room) return 7;
    strcpy(to, from);
    return 0;
}
int nvmlInitWithFlags(unsigned flags) { started++; return flags ? 2 : 0; }
int nvmlShutdown(void) { return started-- > 0 ? 0 : 1; }
int nvmlSystemGetDriverVersion(char *to, unsigned room) { return text("600.1", to, room); }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = 12080; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return started ? 0 : 1; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **to) { *to = index ? NULL : &gpu; return 0; }
int nvmlDeviceGetUUID(Device *d, char *to, unsigned room) { return d == &gpu ? text("GPU-c", to, room) : 2; }
int nvmlDeviceGetName(Device *d, char *to, unsigned room) { return text("Card \xff", to, room); }
int nvmlDeviceGetMigMode(Device *d, unsigned *now, unsigned *later) { return 3; }
int nvmlDeviceGetMemoryInfo_v2(Device *d, Memory *m) {
    if (d != &gpu) return 2;
    if (m->version != (sizeof *m | 2 << 24)) return 25;
    m->total = 1ull << 37; m->reserved = 5; m->used = 1ull << 36; m->free = m->total - m->used - 5;
    return 0;
}
int nvmlDeviceGetUtilizationRates(Device *d, Rates *r) { r->gpu = 61; r->memory = 7; return d != &gpu; }
int nvmlDeviceGetTemperature(Device *d, int sensor, unsigned *to) { *to = 44; return sensor; }
int nvmlDeviceGetPowerUsage(Device *d, unsigned *to) { *to = 123456; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(Device *d, unsigned long long *to) { *to = 1ull << 40; return 0; }
int nvmlDeviceGetComputeMode(Device *d, unsigned *to) { *to = 2; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *count, Process *to) {
    static int calls;
    unsigned room = *count, there = ++calls < 2 ? 2 : 12; /* the list grows between the calls */
    *count = there;
    if (room < there) return 7;
    for (unsigned i = 0; i < there; i++) { to[i].pid = 100 + i; to[i].memory = 1ull << 33; }
    return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A libnvidia-ml of our own, written in C."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("library")
    (folder / "nvml.c").write_text(LIBRARY)
    built = [compiler, "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(folder / "nvml.c")]
    subprocess.run(built, check=True)
    return folder


def test_a_shared_library_is_loaded_and_read_rightly(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    program = "import gpulab, json; print(json.dumps(gpulab.snapshot().to_dict()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["nvml"]["state"], found["nvml"]["driver"], found["nvml"]["cuda"]) == ("ok", "600.1", "12.8")
    assert not found["simulated"]
    gpu, nameless = found["devices"]
    assert (gpu["uuid"], gpu["name"], gpu["state"]) == ("GPU-c", None, "ok")  # a name that is no text
    assert (gpu["memory"]["total_bytes"], gpu["memory"]["used_bytes"]) == (2**37, 2**36)
    assert (gpu["memory"]["reserved_bytes"], gpu["memory"]["free_bytes"]) == (5, 2**36 - 5)
    assert gpu["utilization"] == {"gpu_percent": 61, "memory_percent": 7}
    assert (gpu["temperature_celsius"], gpu["power_watts"], gpu["power_limit_watts"]) == (44, 123.456, None)
    assert gpu["energy_joules"] == 2**40 / 1000
    assert gpu["compute_mode"] == "prohibited"
    assert [process["pid"] for process in gpu["processes"]] == list(range(100, 112))
    assert {process["memory_bytes"] for process in gpu["processes"]} == {2**33}
    assert (nameless["index"], nameless["state"], nameless["uuid"]) == (1, "error", None)


@pytest.mark.parametrize("content", ["nvmlInit = None\n", "raise ImportError('not that one')\n"])
def test_a_wrong_pynvml_is_named_with_its_remedy(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text(content)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    program = "import gpulab; print(gpulab.snapshot().driver.message)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "The package nvidia-ml-py does not work here" in done.stdout
    assert "pip install nvidia-ml-py" in done.stdout
