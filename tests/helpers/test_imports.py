"""A notebook of another version of the course asks for what is not there: one sentence says so, in Jupyter alone."""

import subprocess
import sys

import pytest

from tests.support.course import ROOT


def shown(line):
    """What IPython shows of a line, as a notebook does."""
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=nocolor", "-c", line]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120).stdout


@pytest.mark.parametrize(
    "line", ["import helpers.relatives", "from helpers import checks", "from helpers.text import held_out_split"]
)
def test_a_name_that_is_not_there_any_more_is_one_sentence(line, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    said = shown(line)
    assert said.strip().count("\n") == 0, "more than one line: a traceback"
    assert line.split()[-1].split(".")[-1] in said
    assert "made for another version of the course: `make reset NOTEBOOK=…`" in said


def test_other_import_errors_and_python_without_jupyter_say_what_they_always_say(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    said = shown("import helpers, nothing_at_all")
    assert "Traceback" in said
    assert "another version" not in said
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'helpers\.nothing'$"):
        exec("import helpers.nothing", {})
