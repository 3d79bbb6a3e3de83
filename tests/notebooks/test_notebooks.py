"""Every notebook is stored clean, opens on Colab, runs without a warning, and labels the axes of its figures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 240  # of one cell
BADGE = "[![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)]({})"
COLAB = "https://colab.research.google.com/github/hgpo-jax/hgpo_jax/blob/main/notebooks/"

# Runs before the first cell: warnings are errors, and every figure that is drawn for display is looked at.
BEFORE = """
import warnings as _warnings
_warnings.simplefilter("error")
_warnings.filterwarnings("ignore", category=PendingDeprecationWarning, module="ipykernel")  # as the kernel ends
from matplotlib.backend_bases import FigureCanvasBase as _Canvas

def _missing(figure):
    for axes in figure.axes:
        if not axes.axison or axes.get_label() == "<colorbar>":
            continue
        for name in "xy":
            alike = getattr(axes, f"get_shared_{name}_axes")().get_siblings(axes)
            own = any(getattr(other, f"get_{name}label")() for other in alike)
            if not own and not getattr(figure, f"get_sup{name}label")():
                yield f"no {name} label in the axes titled {axes.get_title()!r}"

def _drawn(self, *args, _print_figure=_Canvas.print_figure, **settings):
    _figures.append(list(_missing(self.figure)))
    return _print_figure(self, *args, **settings)

_figures = []
_Canvas.print_figure = _drawn
"""
AFTER = "print([missing for missing in _figures if missing], len(_figures))"


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_clean(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_opens_on_colab(path: Path) -> None:
    first, *others = read(path).cells
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert BADGE.format(COLAB + path.name) in first.source
    code = [cell.source for cell in others if cell.cell_type == "code"]
    assert "%pip install" in code[0]
    assert not any("pip install" in source for source in code[1:])


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = read(path)
    before, after = nbformat.v4.new_code_cell(BEFORE), nbformat.v4.new_code_cell(AFTER)
    notebook.cells = [before, *notebook.cells, after]
    run(notebook, tmp_path)

    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    assert outputs[-1].text == f"[] {pictures}\n"


@pytest.mark.slow
def test_missing_labels_and_warnings_are_found(tmp_path: Path) -> None:
    sources = [
        BEFORE,
        "import matplotlib.pyplot as plt\nplt.plot([1]);",
        "plt.plot([1]); plt.xlabel('x'); plt.ylabel('y'); plt.show()",
        "figure, axes = plt.subplots(1, 2, sharey=True); figure.supxlabel('x'); axes[0].set_ylabel('y');",
        AFTER,
        "import warnings\nwarnings.warn('old', DeprecationWarning)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    with pytest.raises(CellExecutionError, match="DeprecationWarning"):
        run(notebook, tmp_path)
    missing = ["no x label in the axes titled ''", "no y label in the axes titled ''"]
    assert notebook.cells[4].outputs[-1].text == f"{[missing]} 3\n"


def run(notebook: Any, folder: Path) -> None:
    """Top to bottom, in a kernel whose figures are displayed inline; what a cell raises is raised here."""
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"} | {"JAX_PLATFORMS": "cpu"}
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources)
    client.execute(env=environment)
