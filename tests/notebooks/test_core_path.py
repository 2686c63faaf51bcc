"""The core path of notebook 00 runs as its table says: the imports, these sections, these exercises."""

import re

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.course import ROOT, notebooks

START = "\n".join(cell.source for cell in notebooks()["00_start_here"].cells)
TABLE = re.findall(r"^\| (0\d) \| (\d\.\d.*?) \| (`my_.*?) \| \d+ \|$", START, re.M)


def named(sections):
    """ "5.1", "5.2" and "5.5" for "5.1, 5.2 and 5.5"; "1.1", "1.2" and "1.3" for "1.1 to 1.3"."""
    found = re.findall(r"\d\.(\d+)", sections)
    numbers = range(int(found[0]), int(found[-1]) + 1) if " to " in sections else found
    return [f"{sections[0]}.{number}" for number in numbers]


def test_the_table_names_five_notebooks():
    assert [row[0] for row in TABLE] == ["01", "02", "03", "04", "05"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "sections", "exercises"), TABLE, ids=[row[0] for row in TABLE])
def test_the_core_path_runs_from_a_new_kernel(number, sections, exercises):
    (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    notebook, section, kept = nbformat.read(path, as_version=4), "start", []
    functions = set(re.findall(r"my_\w+", exercises))
    for cell in notebook.cells:
        if heading := re.match(r"## (\d\.\d+)?", cell.source if cell.cell_type == "markdown" else ""):
            section = heading[1] or "other"
        asks = any(re.search(rf"^def {name}\b", cell.source, re.M) for name in functions)
        if "pick_device()" in cell.source or section in named(sections) or asks:
            kept.append(cell)
    notebook.cells = kept
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": ROOT / "notebooks"}}).execute()
    outputs = [output for cell in kept for output in cell.get("outputs", []) if "data" in output]
    said = "\n".join(output.data.get("text/plain", "") for output in outputs)
    assert {f"my_{name}" for name in re.findall(r"^(?:my_)?(\w+): not attempted", said, re.M)} == functions
