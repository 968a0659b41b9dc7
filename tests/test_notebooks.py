"""Every notebook: kept as a course needs it, and run whole with a GPU kernel and with a plain one."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ALL = [*NOTEBOOKS, ROOT / "dashboards" / "team.ipynb"]
MAX_CELLS = 15
MAX_FUNCTION_LINES = 3


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def plain_python(source: str) -> str:
    """The cell without magics and shell lines."""
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines())


def names(path: Path) -> str:
    return path.stem


@pytest.fixture(params=ALL, ids=names)
def notebook(request: pytest.FixtureRequest) -> NotebookNode:
    found = nbformat.read(request.param, as_version=4)
    nbformat.validate(found)
    return found


def test_there_are_notebooks() -> None:
    assert "00_start_here" in map(names, NOTEBOOKS)


def test_it_is_stored_without_outputs(notebook: NotebookNode) -> None:
    assert [cell.id for cell in code_cells(notebook) if cell.outputs or cell.execution_count] == []
    assert "widgets" not in notebook.metadata


def test_it_is_short_enough_to_be_read(notebook: NotebookNode) -> None:
    assert 1 <= len(code_cells(notebook)) <= MAX_CELLS


def test_its_code_calls_gpulab_instead_of_containing_it(notebook: NotebookNode) -> None:
    for cell in code_cells(notebook):
        for node in ast.walk(ast.parse(plain_python(cell.source))):
            assert not isinstance(node, ast.ClassDef)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=names)
def test_it_opens_with_a_title_and_closes_by_giving_its_gpu_back(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert notebook.cells[0].source.startswith("# ")
    assert code_cells(notebook)[-1].source == "%gpu release"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=names)
def test_it_names_the_gpu_kernel(path: Path) -> None:
    kernelspec = nbformat.read(path, as_version=4).metadata.kernelspec
    assert (kernelspec.name, kernelspec.display_name) == ("gpulab", "Python 3 (GPU)")


def test_the_dashboard_names_a_kernel_that_holds_no_gpu() -> None:
    assert nbformat.read(ALL[-1], as_version=4).metadata.kernelspec.name == "python3"


@pytest.fixture
def kernels(own_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU kernel installed for this test alone, and the command where an activated environment has it."""
    from gpulab.jupyter.kernelspec import install

    install(prefix=str(own_machine))
    monkeypatch.setenv("JUPYTER_PATH", str(own_machine / "share" / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(own_machine / "ipython"))
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)


def run(path: Path, kernel: str) -> NotebookNode:
    """Execute it as `jupyter execute` does. Raises at an error."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, kernel_name=kernel, timeout=100, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    return notebook


def shown(notebook: NotebookNode, kind: str) -> list[str]:
    """What its outputs have of one MIME type; printed text counts as plain."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    printed = [output.text for output in outputs if "text" in output and kind == "text/plain"]
    return printed + [str(output.data[kind]) for output in outputs if kind in output.get("data", {})]


def text_of(notebook: NotebookNode) -> str:
    return "\n".join(shown(notebook, "text/plain"))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=names)
def test_it_runs_with_a_gpu_of_its_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULAB_SIMULATE", "8xh100")
    text = text_of(run(path, "gpulab"))
    assert "H100 80GB HBM3 (simulated)" in text
    assert "is yours" in text


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=names)
def test_it_runs_on_the_plain_kernel_of_a_machine_without_gpus(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    notebook = run(path, "python3")
    assert "is yours" not in text_of(notebook)
    assert "speedup of" not in text_of(notebook)
    pictures = shown(notebook, "image/png")
    assert len(pictures) == {"00_start_here": 1, "01_dbscan": 2}[names(path)]
    assert any("not measured" in table for table in shown(notebook, "text/html"))
