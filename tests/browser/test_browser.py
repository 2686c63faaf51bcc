"""Every notebook with an explorer, in JupyterLab in a real browser: Run All, each control by key and by mouse.

Every cell runs, but training and measuring take less time than under nbval (tests/shorter.py).
"""

import os
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from helpers import explorers
from tests.support.lab import Visitor, chromium, explorers_in, jupyter_lab
from tests.support.shorter import shorten

pytestmark = pytest.mark.browser

NOTEBOOKS = {path.name: path for path in sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))}
FAULTY_DRAWING = """
from matplotlib.figure import Figure
from helpers.explorers import Explorer, slider

figure = Figure(figsize=(2, 1), layout="constrained")
line = figure.subplots().plot([], [])[0]

def draw(level):
    line.set_data([0, 1], [0, 1 / (level < 1)])
    return "drawn"

Explorer(figure, draw, {"level": slider("level", 0, 0, 5)}, "a line")
"""
SILENT_CALLBACK = """
import ipywidgets

level = ipywidgets.IntSlider(description="level [1]", max=5)
level.observe(lambda change: 1 / 0, names="value")
picture = ipywidgets.HTML("<figure><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw=' alt=''></figure>")
box = ipywidgets.VBox([level, picture])
box.add_class("course-explorer")
box
"""


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
                        cell.source = shorten(name.removesuffix(".ipynb"), cell.source)
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


def test_every_explorer_is_in_a_notebook_that_is_visited():
    names = {name for name in vars(explorers) if name.startswith("explore_")}
    assert {name for path in NOTEBOOKS.values() for name in explorers_in(path)} == names


@pytest.mark.parametrize("name", [name for name, path in NOTEBOOKS.items() if explorers_in(path)])
def test_notebook_runs_and_its_explorers_answer(visit, name):
    visitor = visit(name, NOTEBOOKS[name])
    assert visitor.problems == []
    assert visitor.explorers == len(explorers_in(NOTEBOOKS[name]))
    assert visitor.moved >= 2 * visitor.explorers


def test_visitor_reports_a_drawing_that_raises_and_a_callback_that_fails_silently(visit):
    problems = "\n".join(visit("faulty_callbacks.ipynb", [FAULTY_DRAWING, SILENT_CALLBACK], patience=15).problems)
    assert "explorer 1, level [1], arrow key: This setting could not be drawn: ZeroDivisionError" in problems
    assert "explorer 2, level [1], arrow key: the picture did not change" in problems


def test_visitor_reports_stderr_and_a_cell_that_raises(visit):
    sources = ["import sys\n\nprint('a warning', file=sys.stderr)", "1 / 0", "print('never reached')"]
    problems = "\n".join(visit("faulty_cells.ipynb", sources).problems)
    assert "code cell 1, error or stderr: a warning" in problems
    assert "ZeroDivisionError: division by zero" in problems
    assert "Run All did not reach the end" in problems
