"""`make notebooks` executes what was asked for, and stores only what belongs to its source."""

import base64
import io
import random
import re

import nbformat
import pytest
from PIL import Image

from helpers.plots import on_card
from tests.support.course import commit_all
from tools import notebooks as tool
from tools import reading


def new_notebook(*sources, claim=""):
    """Code cells, the last of them with this claim."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    cells[-1].metadata |= {"claim": claim} if claim else {}
    return nbformat.v4.new_notebook(cells=cells)


@pytest.fixture
def course(tmp_path, monkeypatch):
    """An empty folder of notebooks."""
    monkeypatch.setenv("COURSE_DEVICE", "")  # which the tool sets for the kernel
    monkeypatch.setattr(tool, "NOTEBOOKS", tmp_path)
    return tmp_path


def test_names_all_or_git_choose_what_is_executed(course, monkeypatch, capsys):
    executed = []
    monkeypatch.setattr(tool, "execute", lambda path: executed.append(capsys.readouterr().out) or 7.4)
    for name in ("01_one", "02_two", "03_three", "02_two-Copy1"):
        (course / f"{name}.ipynb").write_text("old")
    for arguments, chosen in (["notebooks/02_two.ipynb"], ["02_two"]), (["--all"], ["01_one", "02_two", "03_three"]):
        tool.main(arguments)
        assert executed == [f"{chosen[0]}: ", *(f"7 s\n{name}: " for name in chosen[1:])]  # it is said what runs
        assert capsys.readouterr().out == "7 s\n"
        executed.clear()
    commit_all(course)
    tool.main([])
    assert (executed, capsys.readouterr().out[:33]) == ([], "No notebook differs from the last")
    (course / "02_two.ipynb").write_text("new")
    (course / "03_three.ipynb").rename(course / "04_four.ipynb")  # which git does not know
    tool.main([])
    assert executed == ["02_two: ", "7 s\n04_four: "]


@pytest.mark.parametrize(("arguments", "variable", "reason"), [
    ([], "GIT_DIR", "git status|not installed"), ([], "PATH", "git is not installed"), (["98"], "A", "begins with 98"),
])  # fmt: skip
def test_names_are_asked_for_where_git_or_a_name_says_nothing(course, monkeypatch, capsys, arguments, variable, reason):
    monkeypatch.setenv(variable, str(course / "nowhere"))
    with pytest.raises(SystemExit):
        tool.main(arguments)
    assert re.search(rf"({reason}).* Name the notebooks, such as 06, or say --all\.$", capsys.readouterr().err)


def test_a_change_of_text_needs_no_run_and_what_is_clean_is_not_written_again(course, monkeypatch, capsys):
    monkeypatch.setattr(tool, "execute", lambda path: pytest.fail("it was executed"))
    notebook, path = new_notebook("show()"), course / "01_one.ipynb"
    notebook.cells[0].outputs = [nbformat.v4.new_output("stream", text="hello\n")]
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell("**Predict.** What?", metadata={"tags": ["predict"]}))
    nbformat.write(notebook, path)
    tool.main(["--text"])
    (folded,) = nbformat.read(path, as_version=4).cells[1:]
    assert folded.metadata == {
        "jupyter": {"outputs_hidden": True},
        "tags": ["hide-output"],
    }  # a new question folds what answers it
    assert [output.get("text") for output in folded.outputs] == [None, "hello\n"]
    monkeypatch.setattr(tool, "write_beside", lambda path, text: pytest.fail("it was written again"))
    tool.main(["01", "--text"])
    assert capsys.readouterr().out == "01_one: cleaned, not executed\n01_one: unchanged\n"


@pytest.mark.slow
def test_a_notebook_that_fails_is_named_kept_and_does_not_stop_the_others(course, monkeypatch, capsys):
    """A kernel that dies, a cell that takes too long, raises or claims too much, no notebook."""
    sources = {"01_ends": "import os; os._exit(3)", "02_waits": "import time; time.sleep(60)", "03_raises": "1 / 0",
               "06_good": "print(1)", "07_claims": "a, b = 2, [1]"}  # fmt: skip
    for stem, source in sources.items():
        claim = "all(a < c for c in b)" if stem == "07_claims" else ""
        nbformat.write(new_notebook("a = 1", source, claim=claim), course / f"{stem}.ipynb")
    (course / "04_broken.ipynb").write_text("<html>")
    monkeypatch.setattr(tool, "CELL_SECONDS", 2)
    before = {path.stem: path.read_bytes() for path in course.iterdir()}
    with pytest.raises(SystemExit, match=r": 01_ends, 02_waits, 03_raises, 04_broken, 07_claims\.$"):
        tool.main(["--all"])
    said = capsys.readouterr().out
    for words in (
        "01_ends: failed. cell 2 ended its kernel", "02_waits: failed. cell 2 takes longer",
        "03_raises: failed. An error", "04_broken: failed. Notebook does not", "07_claims: failed. cell 2 claims all(",
        "False, a = 2, b = [1]: the machine was busy, or the text is wrong: run it",
    ):  # fmt: skip
        assert words in said
    assert {path.stem for path in course.iterdir() if path.read_bytes() != before[path.stem]} == {"06_good"}


def test_clean_drops_what_differs_and_keeps_what_was_written():
    notebook = new_notebook("show()", claim="1 < 2")
    cell, widget = notebook.cells[0], {tool.WIDGET_VIEW: {"model_id": "1"}}
    cell.metadata.update(
        execution={"iopub": "now"}, jupyter={"outputs_hidden": True}, collapsed=True, tags=["hide-output", "figure"]
    )
    cell.outputs = [nbformat.v4.new_output("display_data", data=data) for data in ({"image/png": "", **widget}, widget)]
    notebook.metadata.update(widgets={"state": {}}, kernelspec={"name": "mine"})
    tool.clean(notebook)
    assert notebook.metadata.keys() == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    kept = {"tags": ["figure", "hide-input"], "claim": "1 < 2", "jupyter": {"source_hidden": True}}
    assert cell.metadata == kept
    assert [list(output.data) for output in cell.outputs] == [["image/png"]]
    tool.clean(notebook)
    assert cell.metadata == kept
    cell.metadata["tags"].remove("figure")
    tool.clean(notebook)
    assert cell.metadata == {"claim": "1 < 2"}


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
def test_executing_twice_gives_the_same_bytes(course):
    path = course / "tiny.ipynb"
    bar = "import time\nfor share in (0, 50, 100):\n    print(f'\\r{share}%', end='', flush=True); time.sleep(0.1)"
    picture = f"from IPython.display import Image\nImage(data={png(GREYS)!r})"
    where = "import os; print(os.environ['COURSE_DEVICE'], os.getcwd())"
    nbformat.write(new_notebook(where, bar, picture, "a = 1", claim="a == max(a, 0)"), path)
    path.chmod(0o640)
    tool.execute(path)
    first = path.read_bytes()
    tool.execute(path)
    assert path.read_bytes() == first
    notebook = nbformat.read(path, as_version=4)
    assert [cell.outputs[0].text for cell in notebook.cells[:2]] == [f"cpu {course}\n", "100%"]
    assert len(base64.b64decode(notebook.cells[2].outputs[0].data["image/png"])) < len(png(GREYS)) / 2
    assert [cell.execution_count for cell in notebook.cells] == [1, 2, 3, 4]
    assert path.stat().st_mode & 0o777 == 0o640
