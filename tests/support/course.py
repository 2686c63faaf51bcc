"""The course as files: its pages, the verbs of its Makefile, and the code of its notebooks, run with other words."""

import contextlib
import io
import json
import re
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"


def pages() -> list[Path]:
    """What people read beside the notebooks."""
    return sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


def entries() -> list[tuple[str, ...]]:
    """The glossary's entries: term, what stands behind it, explanation, number of the notebook, section, its file."""
    entry = r"^- \*\*(.+?)\*\*(.*?): (.+?) \[(0\d), ([^\]]+)\]\(\.\./notebooks/([^)]+)\)$"
    return re.findall(entry, re.sub(r"\n {2}", " ", GLOSSARY.read_text(encoding="utf-8")), re.M)


def targets() -> set[str]:
    """The verbs of the Makefile."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


SHORTER = {  # in notebook 06: each cell is to run, not to learn
    "for part in (text[: len(held_out)], held_out)": "for part in (text[:1000], held_out[:1000])",
    '"batch_size": 32': '"batch_size": 4',
    "steps=100": "steps=3",
}


def run_notebook(stem: str, changes: dict, monkeypatch) -> dict:
    """Run a notebook's code with some words changed, and 06 for as few steps as it can; what its names hold then."""
    monkeypatch.setenv("COURSE_STEPS", "18")  # the fewest that leave its four stages
    monkeypatch.setattr("IPython.display.display", lambda *args, **kwargs: None)
    cells = json.loads((ROOT / "notebooks" / f"{stem}.ipynb").read_text(encoding="utf-8"))["cells"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for words, changed in changes.items():
        assert words in text, f"notebook {stem} no longer has {words!r}: mend the test"
        text = text.replace(words, changed)
    names = {"__name__": "__main__"}
    with mpl.rc_context(), contextlib.redirect_stdout(io.StringIO()):
        exec(compile(text, f"notebook {stem}", "exec"), names)
    plt.close("all")
    return names
