"""Notebooks 06 and 07 run on a learner's own text, from the shortest that load_text takes."""

import pytest

from benchmarks.experiments.training import library_docstrings
from helpers.corpus import SMALLEST
from tests.support.course import SHORTER, run_notebook

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # between matplotlib and PyTorch: a notebook hides them
]


@pytest.mark.parametrize(("stem", "shorter"), [("06_train", SHORTER), ("07_generate", {})])
def test_the_shortest_text_of_ones_own_runs_through(stem, shorter, tmp_path, monkeypatch):
    own = tmp_path / "mine.txt"
    own.write_text(library_docstrings()[:SMALLEST])
    names = run_notebook(stem, {"source = None": f"source = {str(own)!r}"} | shorter, monkeypatch)
    assert len(names["held_out"]) < SMALLEST / 5
