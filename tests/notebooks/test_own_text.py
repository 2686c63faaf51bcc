"""Notebooks 06 and 07 run on a learner's own text, from the shortest that load_text takes."""

import contextlib
import io

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

from benchmarks.experiments.training import library_docstrings
from helpers.corpus import MIN_CHARACTERS, deduplicate
from tests.support.course import notebooks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # between matplotlib and PyTorch: a notebook hides them
]
SHORTER = {  # in notebook 06: each cell is to run, not to learn
    "for part in (text[: len(held_out)], held_out)": "for part in (text[:1000], held_out[:1000])",
    '"batch_size": 32': '"batch_size": 4',
    "steps=100": "steps=3",
}


@pytest.mark.parametrize(("stem", "shorter"), [("06_train", SHORTER), ("07_generate", {})])
def test_the_shortest_text_of_ones_own_runs_through(stem, shorter, tmp_path, monkeypatch):
    own, names = tmp_path / "mine.txt", {"__name__": "__main__"}
    own.write_text(deduplicate(library_docstrings())[0][:MIN_CHARACTERS])
    monkeypatch.setenv("COURSE_STEPS", "18")  # the fewest that leave the four stages of 06
    monkeypatch.setattr("IPython.display.display", lambda *args, **kwargs: None)
    text = "\n\n".join(cell.source for cell in notebooks()[stem].cells if cell.cell_type == "code")
    for words, changed in ({"source = None": f"source = {str(own)!r}"} | shorter).items():
        assert words in text, f"notebook {stem} no longer has {words!r}: mend the test"
        text = text.replace(words, changed)
    with mpl.rc_context(), contextlib.redirect_stdout(io.StringIO()):
        exec(compile(text, f"notebook {stem}", "exec"), names)
    plt.close("all")
    assert len(names["held_out"]) < MIN_CHARACTERS / 5
