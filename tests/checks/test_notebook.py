"""One reader for `my_parts` and the grader: notebooks as learners leave them, read in good time."""

import io
import subprocess
import sys
import time
from contextlib import redirect_stdout

import pytest

from checks import my_parts, notebook
from tests.support.messy import FILES
from tests.support.submissions import NORM

MAGICS = "\n".join(["%time 1" + " " * 370] * 499)


@pytest.mark.parametrize("label", FILES)
def test_my_parts_takes_what_a_messy_notebook_holds(label, tmp_path):
    data, (_, wanted) = FILES[label]
    (tmp_path / f"{NORM}.ipynb").write_bytes(data)
    with redirect_stdout(io.StringIO()):
        assert wanted in repr(my_parts(tmp_path))


@pytest.mark.parametrize("cell", [MAGICS, "'''\\" + "(" * 190_000, "%a \\\n" * 60_000, "a. " * 60_000, "((" * 90_000])
def test_a_cell_made_to_keep_a_reader_busy_does_not(cell):
    start = time.process_time()
    notebook.read_cells([cell] * 3)
    assert time.process_time() - start < 5


def test_the_reader_needs_no_other_file_of_ours_and_no_torch():
    """It starts in a moment inside the grader's walls, for every notebook anew."""
    code = f"import runpy, sys; runpy.run_path({notebook.__file__!r}); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "checks", "helpers", "IPython"} & set(loaded.split())
