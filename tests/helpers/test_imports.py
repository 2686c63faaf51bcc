"""Which import line is right: names from before the move."""

import importlib

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import helpers

OLD_LINES = {  # a line from before the move: what is to be written now
    "from helpers.checks import check_rms_norm": "from checks import check_rms_norm",
    "from helpers import checks": "from checks import check_rms_norm",
    "from helpers.exercises.whole_model import SLIPS": "from checks.full_model import SLIPS, models_to_examine",
    "from helpers.generate import prepare_for_decoding": "from helpers.fast_decode import prepare_for_decoding",
    "import helpers.classroom": "python -m tools.classroom.hand_out",
    "import helpers.grade": "python -m tools.classroom.grade",
    "import helpers.parallel_report": "from helpers.parallel import compare",
}


def test_an_old_import_shows_one_sentence_in_jupyter_that_says_what_to_write(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shell = InteractiveShell()
    for line, new in OLD_LINES.items():
        with capture_output() as shown:
            result = shell.run_cell(line)
        assert isinstance(result.error_in_exec, ImportError)
        assert shown.stdout.count("\n") == 1, "more than one line: a traceback"
        assert f"has moved. Write now, with the names that you need: {new}" in shown.stdout
        with pytest.raises(helpers.MovedError):  # without Jupyter too
            exec(line, {})


def test_what_is_to_be_written_now_can_be_imported():
    for new in helpers.MOVED.values():
        if new.startswith("from "):
            exec(new, {})
        else:
            assert importlib.util.find_spec(new.split()[2].rstrip(","))


def test_what_never_was_there_is_reported_as_ever():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'helpers\.nothing'"):
        importlib.import_module("helpers.nothing")
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from helpers.generate import nothing", {})
