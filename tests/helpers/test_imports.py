"""A notebook of another version of the course asks for what is not there: one sentence says so."""

import subprocess
import sys

import pytest

from tests.support.course import ROOT

OTHER = "made for another version of the course: `make reset NOTEBOOK=…`"
LINES = {  # an import line, and words that IPython, as a notebook does, shows of its error
    "import helpers.relatives": ("helpers.relatives", OTHER),
    "from helpers import checks": ("checks", OTHER),
    "from helpers.assets import held_out_split": ("held_out_split", OTHER),
    "import helpers, nothing_at_all": ("Traceback", "No module named 'nothing_at_all'"),
}


@pytest.mark.parametrize("line", LINES)
def test_a_name_that_is_not_there_any_more_is_one_sentence_and_nothing_else_is(line, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=nocolor", "-c", line]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120).stdout.strip()
    assert all(words in said for words in LINES[line]), said
    assert (OTHER in said) == ("\n" not in said), "more than one line: a traceback"
