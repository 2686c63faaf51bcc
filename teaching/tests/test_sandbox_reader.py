"""The grader reads a messy notebook as `my_parts` does (tests/checks/test_notebook.py)."""

import ast
import json

import pytest

from checks import check_rms_norm, notebook
from teaching.classroom import sandbox_reader
from teaching.classroom.grade import OF_CHECK
from teaching.classroom.submissions import read_course
from tests.support.messy import FILES
from tests.support.submissions import COURSE, NORM

EXERCISES, LENT = read_course([NORM])[NORM]


@pytest.mark.parametrize("label", FILES)
def test_the_grader_makes_of_a_messy_notebook_what_my_parts_makes_of_it(label):
    data, (wanted, _) = FILES[label]
    assert grade(data) == wanted


def grade(data):
    """What the grader says, without its sandbox."""
    asked, names = [(one.function, one.stub) for one in EXERCISES], {"__name__": ""}
    said = sandbox_reader.answers(notebook, data, asked, LENT)[0]
    try:
        exec(said.get("code", ""), names)
    except NameError:
        return "stops"
    return said.get("status") or OF_CHECK[check_rms_norm(names["my_rms_norm"]).status]


def change(**more):
    """A function that changes every code cell of a notebook."""
    return lambda cells: [cell.update(more) for cell in cells]


def rewrite(cells):
    """As a formatter does when the file is saved: the same program in other letters."""
    for cell in cells:
        cell["source"] = ast.unparse(ast.parse("".join(cell["source"]))).replace("\n", "  # a\n", 1)


def run_one_alone(cells):
    change(execution_count=None, outputs=[])(cells)
    cells[3]["execution_count"] = 1


READY = "ready: every cell ran, and none ended in an error"
SAVED = {  # what became of notebook 00, and what the grader says
    "as Colab saves it, without counts": (change(execution_count=None), READY),
    "by a formatter": (rewrite, READY),
    "copied, and the copy not run": (lambda cells: cells.append(cells[5] | {"execution_count": None}), READY),
    "without counts, the last cells not run": (
        lambda cells: (change(execution_count=None)(cells), change(outputs=[])(cells[-2:])),
        "not run: the cell that begins with changed = tokens + torch.eye(9, ",
    ),
    "nothing but one cell was run": (run_one_alone, "not run: the cell that begins with import math"),
    "handed out": (change(execution_count=None, outputs=[]), "not run: the cell that begins with import math"),
    "an error, without counts": (
        change(execution_count=None, outputs=[{"output_type": "error", "ename": "E", "evalue": "x"}]), "said: E: x",
    ),
}  # fmt: skip


@pytest.mark.parametrize("label", SAVED)
def test_whether_notebook_00_was_run_is_told_however_it_was_saved(label):
    book, (damage, wanted) = json.loads((COURSE / "00_start_here.ipynb").read_text(encoding="utf-8")), SAVED[label]
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    damage(cells)
    asked = read_course(["00"])["00_start_here"][1]
    said = sandbox_reader.answers(notebook, json.dumps({"cells": cells}).encode(), [("", "")], asked)[0]["seen"]
    assert said.startswith(wanted), said
