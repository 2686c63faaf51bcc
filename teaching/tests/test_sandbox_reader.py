"""The grader reads a messy notebook as `my_parts` does (tests/checks/test_notebook.py)."""

import pytest

from checks import check_rms_norm, notebook
from teaching.classroom import sandbox_reader
from teaching.classroom.grade import OF_CHECK
from teaching.classroom.submissions import read_course
from tests.support.messy import FILES
from tests.support.submissions import NORM

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
