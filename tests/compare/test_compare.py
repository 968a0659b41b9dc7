"""`gpulab.compare` is callable whatever was imported first, and costs nothing before it is called."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

ORDERS = {
    "attribute first": "import gpulab; gpulab.compare; import gpulab.compare.result",
    "package first": "import gpulab.compare; import gpulab",
    "submodule first": "import gpulab.compare.result; import gpulab",
    "from import": "from gpulab.compare import compare; import gpulab; assert compare is gpulab.compare",
    "from gpulab": "from gpulab import compare; import gpulab.compare; assert compare is gpulab.compare",
}


def run(code: str) -> str:
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.mark.parametrize("order", ORDERS)
def test_it_is_callable_and_a_package_whatever_is_imported_first(order: str) -> None:
    code = (
        ORDERS[order]
        + """
try:
    gpulab.compare("no such workload", sizes=[1])
except gpulab.compare.RequestError if hasattr(gpulab.compare, "RequestError") else ValueError as error:
    print(error)
import gpulab.compare.result
assert gpulab.compare.result.Result.load and gpulab.compare.load
"""
    )
    assert "There is no workload 'no such workload'" in run(code)


def test_naming_it_loads_nothing_heavy() -> None:
    loaded = json.loads(run("import gpulab, sys, json; gpulab.compare; print(json.dumps(list(sys.modules)))"))
    assert not {"numpy", "sklearn", "matplotlib", "tqdm", "gpulab.compare.measure"} & set(loaded)
