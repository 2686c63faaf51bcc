"""`make notebooks` that is killed at any moment leaves the old notebook or the new one, never half of it."""

import nbformat
import pytest

from tests.support.kills import alone, kill_often, needs_fork
from tools import notebooks

pytestmark = [pytest.mark.slow, needs_fork]


def done_at_once(client):
    """Stands for running a notebook, so that kills hit what comes after it."""
    client.nb.cells[0].outputs = [nbformat.v4.new_output("stream", text="x" * 100_000 + "\n")]


def kill_notebooks(place):
    path = place / "tiny.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print('x' * 100_000)")]), path)
    old = path.read_bytes()
    notebooks.NotebookClient.execute = done_at_once

    def check():
        if path.read_bytes() != old:
            notebook = nbformat.read(path, as_version=4)
            assert notebooks.what_changed(notebook) == ""
            assert notebook.cells[0].outputs[0].text == "x" * 100_000 + "\n"

    kill_often(lambda: notebooks.execute(path), check, 8, lambda: path.write_bytes(old))


def test_a_notebook_is_replaced_whole_or_not_at_all(tmp_path):
    alone(kill_notebooks, tmp_path)
