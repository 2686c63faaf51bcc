"""Submissions as students hand them in: right and wrong answers in the notebook that the teacher gave out."""

import inspect
import json
import re

from tests.support.answers import right_answer_to
from tests.support.course import ROOT
from tools.course import without_solutions

COURSE = ROOT / "notebooks"
NORM = "01_rmsnorm"
EXERCISES = {  # what the exercises of notebook 01 ask for, in their order: the name of each one's check
    "my_rms_norm": "rms_norm",
    "my_norm_probe": "norm_probe",
    "my_rms_norm_backward": "rms_norm_backward",
}


def source_of(program, name):
    """The text of a program under the name that an exercise asks for."""
    text = inspect.getsource(program)
    return re.sub(rf"\b{program.__name__}\b", name, text[text.index("def ") :])


NORM_RIGHT = {name: source_of(right_answer_to(exercise), name) for name, exercise in EXERCISES.items()}
WRONG_NORM = """def my_rms_norm(x, weight, eps):
    rms = torch.sqrt(torch.mean(x.float() ** 2, dim=-1, keepdim=True))
    return ((x.float() / (rms + eps)) * weight).to(x.dtype)
"""
WRONG_HINT = "inside the root"


def handed_out(stem=NORM):
    """A notebook of the course as students get it."""
    return without_solutions(json.loads((COURSE / f"{stem}.ipynb").read_text(encoding="utf-8")))


def solved(answers, stem=NORM, extra=()):
    """The notebook handed out, after the cells of `extra`, with answers: {function: its source, or None: no cell}."""
    notebook = handed_out(stem)
    cells = [code_cell(source) for source in extra]
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        name = next((name for name in answers if re.search(rf"^def {name}\b", source, re.M)), None)
        if not name or answers[name] is not None:
            cells.append(cell | {"source": answers[name] if name else cell["source"]})
    return notebook | {"cells": cells}


def code_cell(source):
    return {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], "execution_count": None}


def write(path, notebook):
    """Write a notebook, or text that is none, and make the folders on the way."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(notebook if isinstance(notebook, str) else json.dumps(notebook), encoding="utf-8")
