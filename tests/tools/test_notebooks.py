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

HELPERS = "from helpers import model"
IGNORED = "nbval-ignore-output"


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
    for name in ("source_hash", "helpers_hash", "outputs_hash", "text_hash"):
        notebook.metadata[name] = getattr(tool, name)(notebook)
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    return notebook


def printed(path):
    return [output.text for cell in nbformat.read(path, as_version=4).cells for output in cell.outputs]


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of its own: helpers, checks, and an empty folder of notebooks, which is returned."""
    texts = {"helpers/model.py": "import helpers.cache", "checks/rope.py": "from helpers import model as parts"}
    empty = ("helpers/__init__.py", "helpers/cache.py", "notes.py", "checks/__init__.py", "checks/gqa.py")
    for name, text in (dict.fromkeys(empty, "") | texts).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setenv("COURSE_DEVICE", "")  # which the tool sets for the kernel
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "FILE_OF", {"check_rope": "rope", "check_gqa": "gqa"})
    monkeypatch.setattr(tool, "NOTEBOOKS", tmp_path / "notebooks")
    return tmp_path / "notebooks"


@pytest.mark.parametrize(("source", "files"), [
    ("from checks import check_rope", {"checks/rope.py", "helpers/model.py", "helpers/cache.py"}),
    ("%time 1\ndef f():\n    from checks import check_gqa as mine", {"checks/gqa.py"}),
    ("import checks.gqa, notes, os.path, helpers.gone", {"checks/gqa.py", "helpers/__init__.py"}),
])  # fmt: skip
def test_the_files_that_a_notebook_imports_are_followed_and_no_others(course, source, files):
    notebook, matter = new_notebook(source), set()
    before = tool.helpers_hash(notebook)
    for path in course.parent.rglob("*.py"):
        text = path.read_text()
        path.write_text(text + "\n# changed")
        if tool.helpers_hash(notebook) != before:
            matter.add(path.relative_to(course.parent).as_posix())
        path.write_text(text)
    assert matter == files


WAITS = "a cell of it takes minutes, so name it to run it again"
QUESTION = nbformat.v4.new_markdown_cell("**Predict.** What?", id="text", metadata={"tags": ["predict"]})
SITUATIONS = {  # what happened after the tool made the notebook, what is said, and the tag of its cell
    "nothing": (lambda cells, helper: None, "unchanged", "slow"),
    "source": (lambda cells, helper: cells[0].update(source=HELPERS + "\n"), "code changed; 7 s", "slow"),
    "tags": (lambda cells, helper: cells[0].metadata.update(tags=["figure"]), "code changed; 7 s", ""),
    "claim": (lambda cells, helper: cells[0].metadata.update(claim="1 < 2"), "code changed; 7 s", ""),
    "helpers": (lambda cells, helper: helper.write_text("x = 1"), "helpers changed; 7 s", ""),
    "slow": (lambda cells, helper: helper.write_text("x = 1"), f"helpers changed; {WAITS}", "slow"),
    "saved": (lambda cells, helper: cells[0].metadata.update(jupyter={}), "cleaned, not executed", "figure"),
    "run": (lambda cells, helper: cells[0].update(execution_count=5), "another program stored its outputs; 7 s", ""),
    "question": (lambda cells, helper: cells.insert(0, QUESTION), "cleaned, not executed", ""),
}


@pytest.mark.parametrize("what", SITUATIONS)
def test_a_notebook_is_executed_when_its_outputs_may_be_wrong(course, monkeypatch, capsys, what):
    change, said, tag = SITUATIONS[what]
    path, said_before_it_ran = course / "01_one.ipynb", []
    notebook = made(path, new_notebook(HELPERS, outputs=["hello\n"], tags=[tag]))
    before = path.read_bytes()
    change(notebook.cells, course.parent / "helpers" / "model.py")
    nbformat.write(notebook, path)
    execute = lambda path, fresh: said_before_it_ran.append(capsys.readouterr().out) or 7.0  # noqa: E731
    monkeypatch.setattr(tool, "execute", execute)
    tool.main([])
    why, took, _ = f"01_one: {said}\n".partition("7 s\n")
    assert said_before_it_ran == [why] * bool(took)
    assert capsys.readouterr().out == (took or why)
    assert (path.read_bytes() == before) == (what in ("nothing", "helpers", "slow", "saved"))
    folded = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.metadata.get("jupyter")]
    assert folded == [HELPERS] * (what in ("saved", "question"))


def test_a_change_of_text_is_stamped_without_a_run(course, monkeypatch, capsys):
    monkeypatch.setattr(tool, "execute", lambda path, fresh: pytest.fail("it was executed"))
    notebook = made(course / "01_one.ipynb", new_notebook(HELPERS, outputs=["hello\n"]))
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
        made(course / f"{name}.ipynb", new_notebook("a = 1", tags=["slow"]))
    executed = []
    monkeypatch.setattr(tool, "execute", lambda path, fresh: executed.append((path.stem, fresh)) or 0.0)
    tool.main(["notebooks/02_two.ipynb", "--fresh"])
    tool.main(["--all"])
    assert executed == [("02_two", True), ("01_one", False), ("02_two", False)]
    tool.main(["02"])
    assert executed.pop() == ("02_two", False)
    with pytest.raises(SystemExit):
        tool.main(["03_three"])


@pytest.mark.slow
def test_a_notebook_that_fails_is_named_kept_and_does_not_stop_the_others(course, monkeypatch, capsys):
    """A kernel that dies, a cell that takes too long, raises or claims too much, no notebook, a helper with a bug."""
    sources = {"01_ends": "import os; os._exit(3)", "02_waits": "import time; time.sleep(60)", "03_raises": "1 / 0",
               "06_good": "print(1)", "07_claims": "a, b = 2, [1]"}  # fmt: skip
    for stem, source in sources.items():
        claim = "all(a < c for c in b)" if stem == "07_claims" else ""
        nbformat.write(new_notebook("a = 1", source, claims=["", claim]), course / f"{stem}.ipynb")
    (course / "04_broken.ipynb").write_text("<html>")
    made(course / "05_bug.ipynb", new_notebook(HELPERS))
    (course.parent / "helpers" / "model.py").write_text("def f(:")
    monkeypatch.setattr(tool, "CELL_SECONDS", 2)
    before = {path.stem: path.read_bytes() for path in course.iterdir()}
    with pytest.raises(SystemExit, match=r": 01_ends, 02_waits, 03_raises, 04_broken, 05_bug, 07_claims\.$"):
        tool.main(["--all"])
    said = capsys.readouterr().out
    for words in (
        "01_ends: code changed; failed. cell 2 ended its kernel", "02_waits: code changed; failed. cell 2 takes longer",
        "03_raises: code changed; failed. An error", "04_broken: failed. Notebook does not",
        "05_bug: failed. invalid syntax (model.py, line 1)", "07_claims: code changed; failed. cell 2 claims all(",
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


@pytest.mark.slow
def test_outputs_that_are_not_compared_stay_until_their_cell_changes(course, monkeypatch):
    path, look = course / "01_one.ipynb", "print(time.time())"
    sources = [f"import time; {look}", f"print('compared')\nif 0:\n    {HELPERS}", look]
    old = made(path, new_notebook(*sources, outputs=["1\n", "2\n", "3\n"], tags=[IGNORED, "", IGNORED]))
    committed = path.read_bytes()
    monkeypatch.setattr(tool, "committed", lambda path: committed)
    old.cells[2].source += "  # changed"
    nbformat.write(old, path)
    tool.execute(path)
    assert printed(path)[:2] == ["1\n", "compared\n"]
    assert float(printed(path)[2]) > 4
    tool.execute(path, fresh=True)
    assert float(printed(path)[0]) > 4
    old.cells[1].metadata["tags"] = ["slow"]
    assert tool.outputs_to_keep(path, old) == {}  # results of training, and another cell changed
    old.cells[2].source = look
    assert set(tool.outputs_to_keep(path, old)) == {0, 2}
    (course.parent / "helpers" / "model.py").write_text("x = 1")
    assert tool.outputs_to_keep(path, old) == {}
