"""The DBSCAN notebook: stripped, short, and it runs from top to bottom without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

PATH = Path(__file__).parents[2] / "notebooks" / "01_dbscan.ipynb"


@pytest.fixture(scope="module")
def notebook() -> Any:
    return nbformat.read(PATH, as_version=4)


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_it_is_stored_without_outputs_and_names_the_gpu_kernel(notebook: Any) -> None:
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code(notebook))
    assert "widgets" not in notebook.metadata
    assert notebook.metadata.kernelspec == {
        "name": "gpulab",
        "display_name": "Python 3 (GPU)",
        "language": "python",
    }


def test_it_is_short_and_keeps_its_logic_in_the_package(notebook: Any) -> None:
    cells = code(notebook)
    assert len(cells) <= 15
    assert not [cell for cell in cells if "def " in cell.source or "class " in cell.source]
    assert notebook.cells[0].source.startswith("# ")
    assert cells[-1].source == "%gpu release"


def test_it_runs_on_a_plain_kernel_without_a_gpu(notebook: Any, tmp_path: Path) -> None:
    NotebookClient(
        notebook, kernel_name="python3", timeout=150, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 2, "the clusters and the comparison"
    tables = [
        output.data["text/html"]
        for output in outputs
        if "<table" in output.get("data", {}).get("text/html", "")
    ]
    assert len(tables) == 1
    assert "not measured" in tables[0]
    text = "".join(output.get("text", "") for output in outputs)
    assert "speedup" not in text
    assert "recorded" in text
