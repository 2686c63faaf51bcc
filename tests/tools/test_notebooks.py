"""The tool that makes the notebooks stores only what belongs to their source."""

import base64
import io
import random
from itertools import zip_longest

import nbformat
import pytest
from PIL import Image

from helpers.plots import on_card
from tools import notebooks as tool
from tools import reading

CODE = "from helpers import model"


def new_notebook(*sources, outputs=(), tags=(), claims=()):
    """Code cells with these stored texts, tags and claims, as far as they are given; with outputs they have run."""
    cells = []
    for i, (source, stored, tag, claim) in enumerate(zip_longest(sources, outputs, tags, claims, fillvalue="")):
        cell = nbformat.v4.new_code_cell(source, id=f"cell{i}", execution_count=i + 1 if outputs else None)
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=stored)] if stored else []
        cell.metadata |= ({"tags": [tag]} if tag else {}) | ({"claim": claim} if claim else {})
        cells.append(cell)
    return nbformat.v4.new_notebook(cells=cells)


def made(path, notebook):
    """Write a notebook as if the tool had just executed it."""
    tool.clean(notebook)
    for name in ("source_hash", "outputs_hash", "text_hash"):
        notebook.metadata[name] = getattr(tool, name)(notebook)
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    return notebook


def printed(path):
    return [output.text for cell in nbformat.read(path, as_version=4).cells for output in cell.outputs]


@pytest.fixture
def course(tmp_path, monkeypatch):
    """An empty folder of notebooks."""
    monkeypatch.setenv("COURSE_DEVICE", "")  # which the tool sets for the kernel
    monkeypatch.setattr(tool, "NOTEBOOKS", tmp_path)
    return tmp_path


QUESTION = nbformat.v4.new_markdown_cell("**Predict.** What?", id="text", metadata={"tags": ["predict"]})
SITUATIONS = {  # what happened after the tool made the notebook, what is said, and the tag of its cell
    "nothing": (lambda cells: None, "unchanged", ""),
    "source": (lambda cells: cells[0].update(source=CODE + "\n"), "code changed; 7 s", ""),
    "tags": (lambda cells: cells[0].metadata.update(tags=["figure"]), "code changed; 7 s", ""),
    "claim": (lambda cells: cells[0].metadata.update(claim="1 < 2"), "code changed; 7 s", ""),
    "saved": (lambda cells: cells[0].metadata.update(jupyter={}), "cleaned, not executed", "figure"),
    "run": (lambda cells: cells[0].update(execution_count=5), "another program stored its outputs; 7 s", ""),
    "question": (lambda cells: cells.insert(0, QUESTION), "cleaned, not executed", ""),
}


@pytest.mark.parametrize("what", SITUATIONS)
def test_a_notebook_is_executed_when_its_outputs_may_be_wrong(course, monkeypatch, capsys, what):
    change, said, tag = SITUATIONS[what]
    path, said_before_it_ran = course / "01_one.ipynb", []
    notebook = made(path, new_notebook(CODE, outputs=["hello\n"], tags=[tag]))
    before = path.read_bytes()
    change(notebook.cells)
    nbformat.write(notebook, path)
    monkeypatch.setattr(tool, "execute", lambda path: said_before_it_ran.append(capsys.readouterr().out) or 7.0)
    tool.main([])
    why, took, _ = f"01_one: {said}\n".partition("7 s\n")
    assert said_before_it_ran == [why] * bool(took)
    assert capsys.readouterr().out == (took or why)
    assert (path.read_bytes() == before) == (what in ("nothing", "saved"))
    folded = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.metadata.get("jupyter")]
    assert folded == [CODE] * (what in ("saved", "question"))


def test_a_change_of_text_is_stamped_without_a_run(course, monkeypatch, capsys):
    monkeypatch.setattr(tool, "execute", lambda path: pytest.fail("it was executed"))
    notebook = made(course / "01_one.ipynb", new_notebook(CODE, outputs=["hello\n"]))
    for change in (lambda: notebook.cells.append(QUESTION), lambda: notebook.cells[0].update(source="a = 1")):
        change()
        nbformat.write(notebook, course / "01_one.ipynb")
        tool.main(["--text"])
        stored = nbformat.read(course / "01_one.ipynb", as_version=4)
        assert stored.metadata.text_hash == tool.text_hash(notebook) != notebook.metadata.text_hash
    assert capsys.readouterr().out.split(": ", 2)[1:] == [
        "cleaned, not executed\n01_one", "code changed; text stamped, not executed\n"
    ]  # fmt: skip


def test_names_choose_notebooks_and_all_chooses_each(course, monkeypatch):
    for name in ("01_one", "02_two", "02_two-Copy1"):
        made(course / f"{name}.ipynb", new_notebook("a = 1"))
    executed = []
    monkeypatch.setattr(tool, "execute", lambda path: executed.append(path.stem) or 0.0)
    tool.main(["notebooks/02_two.ipynb"])
    tool.main(["--all"])
    assert executed == ["02_two", "01_one", "02_two"]
    tool.main(["02"])
    assert executed.pop() == "02_two"
    with pytest.raises(SystemExit):
        tool.main(["03_three"])


@pytest.mark.slow
def test_a_notebook_that_fails_is_named_kept_and_does_not_stop_the_others(course, monkeypatch, capsys):
    """A kernel that dies, a cell that takes too long, raises or claims too much, no notebook."""
    sources = {"01_ends": "import os; os._exit(3)", "02_waits": "import time; time.sleep(60)", "03_raises": "1 / 0",
               "06_good": "print(1)", "07_claims": "a, b = 2, [1]"}  # fmt: skip
    for stem, source in sources.items():
        claim = "all(a < c for c in b)" if stem == "07_claims" else ""
        nbformat.write(new_notebook("a = 1", source, claims=["", claim]), course / f"{stem}.ipynb")
    (course / "04_broken.ipynb").write_text("<html>")
    monkeypatch.setattr(tool, "CELL_SECONDS", 2)
    before = {path.stem: path.read_bytes() for path in course.iterdir()}
    with pytest.raises(SystemExit, match=r": 01_ends, 02_waits, 03_raises, 04_broken, 07_claims\.$"):
        tool.main(["--all"])
    said = capsys.readouterr().out
    for words in (
        "01_ends: code changed; failed. cell 2 ended its kernel", "02_waits: code changed; failed. cell 2 takes longer",
        "03_raises: code changed; failed. An error", "04_broken: failed. Notebook does not",
        "07_claims: code changed; failed. cell 2 claims all(",
        "False, a = 2, b = [1]: the machine was busy, or the text is wrong: run it",
    ):  # fmt: skip
        assert words in said
    assert {path.stem for path in course.iterdir() if path.read_bytes() != before[path.stem]} == {"06_good"}


def test_clean_drops_what_differs_and_keeps_what_was_written():
    notebook = new_notebook("show()", tags=["figure"], claims=["1 < 2"])
    cell, widget = notebook.cells[0], {tool.WIDGET_VIEW: {"model_id": "1"}}
    cell.metadata.update(execution={"iopub.execute_input": "now"}, jupyter={"outputs_hidden": True}, collapsed=True)
    cell.outputs = [nbformat.v4.new_output("display_data", data=data) for data in ({"image/png": "", **widget}, widget)]
    notebook.metadata.update(widgets={"state": {}}, kernelspec={"name": "mine"}, source_hash="a")
    tool.clean(notebook)
    assert notebook.metadata.keys() == {"kernelspec", "language_info", "source_hash"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert cell.metadata == {"tags": ["figure"], "claim": "1 < 2", "jupyter": {"source_hidden": True}}
    assert [list(output.data) for output in cell.outputs] == [["image/png"]]


def test_an_answer_in_open_code_is_found():
    asks = "**Predict.** Where are 53 high: in a row, or along a diagonal?"
    saw = "<details><summary>What you saw</summary>\n\nA diagonal, turned by 53.1. The query sees 17 keys.</details>"
    asks, saw = (nbformat.v4.new_markdown_cell(text, metadata={"tags": ["predict"]}) for text in (asks, saw))
    told = ("fig.suptitle('All turn by 53.1')", "draw()  # 17 keys")
    cells = new_notebook("x = 53  # degrees", "print(f'{x:17.2f} degrees', 53.1, 17)", *told).cells
    found = reading.answers_seen(nbformat.v4.new_notebook(cells=[asks, *cells, saw]))
    assert [told for *_, told in found] == [{"53.1"}, {"17"}]


def png(picture):
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def over_black(picture):
    """All that can be seen, and how clear it is."""
    picture = picture.convert("RGBA")
    seen = Image.alpha_composite(Image.new("RGBA", picture.size, "black"), picture)
    return seen.tobytes(), picture.getchannel("A").tobytes()


COLOURS = Image.frombytes("RGB", (64, 64), random.Random(0).randbytes(3 * 64 * 64))
GREYS = COLOURS.convert("L").convert("RGB")


def test_a_picture_gets_smaller_only_where_nobody_sees_it():
    clear = GREYS.convert("RGBA")
    clear.putalpha(100)
    card = on_card(GREYS.point(lambda grey: min(grey, 250)), 8, 8)
    for picture, share in ((GREYS, 0.5), (COLOURS, 1), (clear, 1), (card, 0.5)):
        before = png(picture)
        after = tool.smaller(before)
        assert over_black(Image.open(io.BytesIO(after))) == over_black(picture)
        assert len(after) <= len(before) * share


@pytest.mark.slow
def test_executing_twice_gives_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_DEVICE", "")
    path = tmp_path / "tiny.ipynb"
    bar = "import time\nfor share in (0, 50, 100):\n    print(f'\\r{share}%', end='', flush=True); time.sleep(0.1)"
    picture = f"from IPython.display import Image\nImage(data={png(GREYS)!r})"
    where = "import os; print(os.environ['COURSE_DEVICE'], os.getcwd())"
    nbformat.write(new_notebook(where, bar, picture, "a = 1", claims=["", "", "", "a == max(a, 0)"]), path)
    path.chmod(0o640)
    runs = []
    for _ in range(2):
        tool.execute(path)
        runs.append(path.read_bytes())
    assert runs[0] == runs[1]
    notebook = nbformat.read(path, as_version=4)
    assert [cell.outputs[0].text for cell in notebook.cells[:2]] == [f"cpu {tmp_path}\n", "100%"]
    assert len(base64.b64decode(notebook.cells[2].outputs[0].data["image/png"])) < len(png(GREYS)) / 2
    assert [cell.execution_count for cell in notebook.cells] == [1, 2, 3, 4]
    assert path.stat().st_mode & 0o777 == 0o640
