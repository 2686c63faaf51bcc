"""Every explorer in JupyterLab in a real browser: each control moved by key and by mouse.

One notebook runs as a learner runs it, from top to bottom; of the others only the cells that its explorers need.
"""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from helpers import explorers
from tests.support.lab import Visitor, chromium, explorers_in, jupyter_lab

pytestmark = pytest.mark.browser

PATHS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
NOTEBOOKS = {path.name: path for path in PATHS if explorers_in(path)}
WHOLE = min(NOTEBOOKS)
FAULTY = """
from helpers.explorers import Explorer, new_figure, slider

figure, ax = new_figure(1)
(line,) = ax.plot([0, 1], [0, 1])

def draw(level):
    line.set_ydata([0, 1 / (level < 1)])
    return ""

class Silent(Explorer):
    def redraw(self, change):
        return 1 / 0

"""
CALL = '(figure, draw, {"level": slider("level", 0, 0, 5)}, "a line")'


@pytest.fixture(scope="module")
def visit(tmp_path_factory):
    """A function from the code cells of a notebook to the Visitor that has tried it."""
    folder = tmp_path_factory.mktemp("browser")
    (folder / "notebooks").mkdir()
    with chromium() as browser, jupyter_lab(folder) as (address, token):

        def visit(name, cells, **patience):
            notebook = new_notebook(cells=[new_code_cell(cell.source, metadata=cell.metadata) for cell in cells])
            # Without the kernel's name JupyterLab would ask for it in a dialog.
            notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
            nbformat.write(notebook, folder / "notebooks" / name)
            return Visitor(browser, address, token, folder / "notebooks" / name, **patience)

        yield visit


def test_every_explorer_is_in_a_notebook():
    names = {name for name in vars(explorers) if name.startswith("explore_")}
    missing = names - {name for path in PATHS for name in explorers_in(path)}
    assert not missing, f"no notebook shows {missing}: call it in a cell of its notebook"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_explorers_of_a_notebook_answer(visit, name):
    setup, *cells = (c for c in nbformat.read(NOTEBOOKS[name], as_version=4).cells if c.cell_type == "code")
    needed = cells if name == WHOLE else [cell for cell in cells if "explore_" in cell.source]
    visitor = visit(name, [setup, *needed])
    assert visitor.problems == []
    assert visitor.explorers == len(explorers_in(NOTEBOOKS[name]))
    assert visitor.moved >= 2 * visitor.explorers


def test_visitor_reports_what_goes_wrong(visit):
    """A drawing that raises, a callback that fails silently, words on stderr, and a cell that raises."""
    sources = [
        f"{FAULTY}Explorer{CALL}",
        f"{FAULTY}Silent{CALL}",
        "import sys\n\nprint('a warning', file=sys.stderr)",
        "1 / 0",
        "'never'",
    ]
    visitor = visit("faulty.ipynb", [new_code_cell(source) for source in sources], patience=5)
    problems = "\n".join(visitor.problems)
    assert "explorer 1, level, arrow key: This setting could not be drawn: ZeroDivisionError" in problems
    assert "explorer 2, level, arrow key: the picture did not change" in problems
    assert "code cell 3, error or stderr: a warning" in problems
    assert re.search("code cell 4, error or stderr:.*ZeroDivisionError: division by zero", problems, re.DOTALL)
    assert "code cell 5 was not run" in problems
