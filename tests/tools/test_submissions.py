"""What is asked of a student and what of a notebook is run are read from notebooks, without running anything."""

import nbformat
import pytest

import checks
from tests.support.submissions import COURSE, EXERCISES, NORM, code_cell, handed_out, write
from tools.classroom import grade, submissions


def test_the_assignments_are_the_exercises_of_the_course():
    course = submissions.read_course(COURSE)
    asked = [one for assignments, _ in course.values() for one in assignments]
    tagged = [
        (path.stem, cell.source.split("(")[-1].rstrip(")\n"))
        for path in sorted(COURSE.glob("[0-9]*.ipynb"))
        for cell in nbformat.read(path, as_version=4).cells
        if "exercise" in cell.metadata.get("tags", [])
    ]
    assert [(one.notebook, one.function) for one in asked] == tagged
    assert len({one.title for one in asked}) == len(set(tagged)) == len(asked)
    assert all(callable(getattr(checks, one.check)) for one in asked)
    assert [one.function for one in course[NORM][0]] == list(EXERCISES)
    assert course[NORM][0][0].title == "1. RMSNorm from memory"


def test_every_exercise_that_is_handed_out_is_not_attempted_and_needs_no_kernel(tmp_path):
    for stem, (assignments, statements) in submissions.read_course(COURSE).items():
        path = tmp_path / f"{stem}.ipynb"
        write(path, handed_out(stem))
        verdicts = grade.judge_submission([path], assignments, statements)
        assert [verdict.args[0] for verdict in verdicts] == ["not attempted"] * len(assignments), stem


def test_a_notebook_that_was_made_before_its_renaming_counts_for_the_new_ones(tmp_path):
    for name in ("06_train_and_generate", "07_scaling_out", "02_rope"):
        write(tmp_path / "anna" / f"{name}.ipynb", "{}")
    students, _ = submissions.find_submissions(tmp_path, ["02_rope", "06_train", "07_generate", "09_scaling_out"])
    assert {new: [path.stem for path in old] for new, old in students["anna"].files.items()} == {
        "02_rope": ["02_rope"], "06_train": ["06_train_and_generate"], "07_generate": ["06_train_and_generate"],
        "09_scaling_out": ["07_scaling_out"],
    }  # fmt: skip
    assert students["anna"].unread == []


def test_an_answer_that_imports_the_checks_from_their_old_place_is_read(tmp_path):
    answer = "from helpers.checks import check_rms_norm\n\ndef my_rms_norm(x, weight, eps):\n    return x"
    write(tmp_path / "old.ipynb", {"cells": [code_cell(answer)]})
    assignments, statements = submissions.read_course(COURSE, [NORM])[NORM]
    code = grade.judge_submission([tmp_path / "old.ipynb"], assignments, statements)[0]
    assert "def my_rms_norm" in code
    assert "helpers.checks" not in code


def cut(*cells, course=()):
    own, _ = submissions.read_statements(list(cells))
    return submissions.code_for("f", own, submissions.read_statements(list(course))[0])


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        (["import os\nimport sys", "def f(x):\n    return os.sep"], "import os\ndef f(x):\n    return os.sep"),
        (["x = slow()", "def f(x):\n    return x"], "def f(x):\n    return x"),  # its own x, not the notebook's
        (["def f(): return g()\ndef g(): return 2"], "def f():\n    return g()\ndef g():\n    return 2"),
        (["a = {}", "a['b'] = 1", "a.pop(2)", "f = lambda: a"], "a = {}\na['b'] = 1\na.pop(2)\nf = lambda: a"),
        (["import m", "m.allclose = 1", "m.seed(0)", "f = lambda: m"], "import m\nf = lambda: m"),
        (["%matplotlib inline\nn = 1", "!ls", "f = lambda: n"], "n = 1\nf = lambda: n"),
        (["f = lambda: later", "later = 1"], "f = lambda: later"),  # not there yet when the exercise's cell is run
        (["x = 1", "from __future__ import division\nf = x.y"], "from __future__ import division\nx = 1\nf = x.y"),
        (["a = 1", "f = lambda: [a for a in range(3)]"], "f = lambda: [a for a in range(3)]"),
        (["while True:\n    pass", "a = 1\nprint(a)", "f = lambda: a"], "a = 1\nf = lambda: a"),
    ],
)  # fmt: skip
def test_a_function_gets_the_statements_it_needs_and_no_others(cells, wanted):
    assert cut(*cells) == wanted


def test_names_that_the_learner_lacks_come_from_the_course():
    assert cut("def f():\n    return F", course=["import F", "import G"]) == "import F\ndef f():\n    return F"
    assert cut("F = 2", "def f():\n    return F", course=["import F"]) == "F = 2\ndef f():\n    return F"
    assert cut("x = 1") is None
