"""Every notebook with an explorer, in JupyterLab in a real browser: Run All, each control by key and by mouse."""

import os
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from helpers import explorers
from tests.browser.lab import Visitor, chromium, jupyter_lab

pytestmark = pytest.mark.browser

NOTEBOOKS = {path.name: path for path in sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))}
STYLE = "from helpers import plots\n\nplots.use_course_style()"


def has_explorer(path):
    cells = nbformat.read(path, as_version=4).cells
    return any("explore_" in cell.source for cell in cells if cell.cell_type == "code")


@pytest.fixture  # a fresh server and browser for each test: what one leaves behind must not stop the next
def visit(tmp_path_factory):
    """A function from a notebook (path, or sources of its cells) to the Visitor that has tried it."""
    folder = tmp_path_factory.mktemp("browser")
    (folder / "notebooks").mkdir()
    try:
        with chromium() as browser, jupyter_lab(folder) as (address, token):

            def visit(name, source, **patience):
                notebook = nbformat.read(source, as_version=4) if isinstance(source, Path) else new_notebook()
                if not isinstance(source, Path):
                    notebook.cells = [new_code_cell(text.strip()) for text in source]
                for cell in notebook.cells:
                    if cell.cell_type == "code":
                        cell.outputs, cell.execution_count = [], None
                # Without the kernel's name JupyterLab would ask for it in a dialog.
                notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
                nbformat.write(notebook, folder / "notebooks" / name)
                visitor = Visitor(browser, address, token, folder / "notebooks" / name, **patience)
                print(f"{name}: {visitor.summary}")
                return visitor

            yield visit
    except LookupError as missing:
        if os.environ.get("CI"):
            pytest.fail(f"CI must try the explorers in a browser: {missing}")
        pytest.skip(f"{missing}; un-skip when it is there")


def test_every_explorer_answers_key_and_mouse(visit):
    names = sorted(name for name in vars(explorers) if name.startswith("explore_"))
    visitor = visit(
        "every_explorer.ipynb", [STYLE, *(f"from helpers import explorers\n\nexplorers.{n}()" for n in names)]
    )
    assert visitor.problems == []
    assert visitor.moved >= 2 * len(names)


@pytest.mark.parametrize("name", [name for name, path in NOTEBOOKS.items() if has_explorer(path)])
def test_notebook_runs_and_its_explorers_answer(visit, name):
    visitor = visit(name, NOTEBOOKS[name])
    assert visitor.problems == []
    assert visitor.moved > 0
