"""The committed notebooks are clean, executed and within their budgets; the tool that makes them and nbval behave."""

import ast
import base64
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote
from xml.etree import ElementTree

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient.exceptions import CellExecutionError

import conftest
from tools import notebooks as make_notebooks

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
KNOWN_TAGS = {
    "predict", "exercise", "figure", "slow", "colab", "hide-input",
    "nbval-ignore-output", "nbval-check-output", "nbval-skip", "raises-exception",
}  # fmt: skip
COURSE_MODULES = ("model", "config", "cache", "checkpoint", "generate")
every_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def numbered(notebook, kind=None):
    """(number, cell), numbers from 1 as JupyterLab's reader counts them; kind "code" or "markdown" or all."""
    return [(i, cell) for i, cell in enumerate(notebook.cells, 1) if kind in (None, cell.cell_type)]


def outputs_of(notebook):
    return [(i, cell, output) for i, cell in numbered(notebook, "code") for output in cell.outputs]


def tags_of(cell):
    return set(cell.metadata.get("tags", []))


def tree_of(cell):
    return ast.parse(TransformerManager().transform_cell(cell.source))


def pictures_of(cell):
    return [output for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]


def headings_of(notebook):
    """(index of the cell, level, text without its number) of each heading; fenced code is left out."""
    found = []
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            prose = re.sub(r"^```.*?^```", "", cell.source, flags=re.M | re.S)
            for marks, text in re.findall(r"^(#{1,6}) +(.*?) *$", prose, re.M):
                found.append((index, len(marks), re.sub(r"^\d+(\.\d+)* ", "", text)))
    return found


def cells_below(notebook, heading):
    """The cells from a heading up to the next one of its level or above."""
    headings = headings_of(notebook)
    after = [index for index, level, _ in headings[headings.index(heading) + 1 :] if level <= heading[1]]
    return notebook.cells[heading[0] : after[0] if after else None]


def test_the_course_has_its_notebooks():
    stems = {path.stem[:2]: path.stem[3:] for path in PATHS}
    assert {"00", "01", "02", "03", "04", "05", "06", "07"} <= stems.keys()
    assert stems["00"] == "start_here"
    assert len(stems) == len(PATHS)


# ------------------------------------------------------------------------------------- clean and executed


@every_notebook
def test_nothing_that_differs_between_runs_is_stored(path):
    text = path.read_text(encoding="utf-8")
    notebook = read(path)
    make_notebooks.clean(notebook)
    assert text == nbformat.writes(notebook) + "\n", "run `make notebooks`: cleaning would change this file"


@every_notebook
def test_metadata_is_only_what_is_known(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info", "source_hash"}
    for number, cell in numbered(notebook):
        assert set(cell.metadata) <= make_notebooks.KEPT_CELL_METADATA, f"cell {number}"
        assert tags_of(cell) <= KNOWN_TAGS, f"cell {number}"
        assert not cell.get("attachments"), f"cell {number}"


@every_notebook
def test_outputs_come_from_the_present_source(path):
    assert make_notebooks.is_up_to_date(read(path)), "run `make notebooks`"


@every_notebook
def test_cells_were_run_once_from_top_to_bottom(path):
    cells = numbered(read(path), "code")
    assert [number for number, cell in cells if not cell.source.strip()] == [], "empty code cells"
    assert [cell.execution_count for _, cell in cells] == list(range(1, len(cells) + 1))


@every_notebook
def test_no_cell_failed_unless_it_says_so(path):
    failed = {n for n, _, output in outputs_of(read(path)) if output.output_type == "error"}
    announced = {n for n, cell in numbered(read(path), "code") if "raises-exception" in tags_of(cell)}
    assert failed == announced


@every_notebook
def test_nothing_was_written_to_stderr(path):
    written = [(n, output.text) for n, _, output in outputs_of(read(path)) if output.get("name") == "stderr"]
    assert written == []


@every_notebook
def test_outputs_name_no_address_and_no_place_on_a_machine(path):
    private = re.compile(r" at 0x[0-9a-f]{6,}|(?<![\w.~-])/(?:home|Users|tmp|root)/|[A-Z]:\\Users")
    for number, _, output in outputs_of(read(path)):
        texts = [output.get("text", ""), *(v for k, v in output.get("data", {}).items() if k.startswith("text/"))]
        assert not [hit[0] for text in texts for hit in private.finditer(text)], f"cell {number}"


# ----------------------------------------------------------------------------------------------- budgets


def lines_of(cell):
    return sum(bool(line.strip()) for line in cell.source.splitlines())


@every_notebook
def test_code_cells_are_short(path):
    lengths = {number: lines_of(cell) for number, cell in numbered(read(path), "code")}
    assert {number: length for number, length in lengths.items() if length > 25} == {}
    assert statistics.median(lengths.values()) <= 8
    assert statistics.quantiles(lengths.values(), n=10, method="inclusive")[8] <= 16


def words_in(text):
    """Words of prose: a formula counts as one; code, tables, tags and the targets of links do not count."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    text = re.sub(r"^ *\|.*$", "", text, flags=re.M)
    text = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", "formula", text, flags=re.S)
    text = re.sub(r"\]\([^)]*\)|</?\w[^>]*>", " ", text)
    return len([word for word in text.split() if re.search(r"\w", word)])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("## 1.1 Two words", 3),
        ("a $x + y$ b", 3),
        ("$$\na + b\n$$\nis", 2),
        ("| a | b |\n|---|---|\n| c d | e |\nafter", 1),
        ("<details><summary>What you saw</summary>\nyes, `f(x)`\n</details>", 5),
        ("[two words](https://x.org/a%20b)", 2),
        ("- **bold** — dash", 2),
    ],
)
def test_words_are_counted_as_a_reader_counts(text, count):
    assert words_in(text) == count


@every_notebook
def test_text_cells_are_short(path):
    lengths = {number: words_in(cell.source) for number, cell in numbered(read(path), "markdown")}
    assert {number: length for number, length in lengths.items() if length > 150} == {}


@every_notebook
def test_sections_are_short(path):
    notebook = read(path)
    sections = [heading for heading in headings_of(notebook) if heading[1] == 2]
    sizes = {text: 0 for _, _, text in sections}
    for heading in sections:
        sizes[heading[2]] += sum(cell.cell_type == "code" for cell in cells_below(notebook, heading))
    assert {text: size for text, size in sizes.items() if size > 10} == {}


@every_notebook
def test_the_title_stands_first_and_once(path):
    notebook = read(path)
    assert [index for index, level, _ in headings_of(notebook) if level == 1] == [0]


# --------------------------------------------------------------------------------------------- exercises


def verdicts(cell):
    """What the checks of a cell said: "not attempted yet", "passed" or "not yet"."""
    said = "\n".join(output.data.get("text/plain", "") for output in cell.outputs if "data" in output)
    return re.findall(r"^\w+: (not attempted yet|passed|not yet)\.", said, re.M)


@every_notebook
def test_exercises_are_open_and_solutions_pass(path):
    cells = numbered(read(path), "code")
    exercises = [cell for _, cell in cells if "exercise" in cell.metadata.get("tags", [])]
    checked = [cell for _, cell in cells if re.search(r"^check_\w+\(", cell.source, re.M)]
    assert all(verdicts(cell) == ["not attempted yet"] for cell in exercises)
    solutions = [cell for cell in checked if cell not in exercises]
    assert all(verdicts(cell) == ["passed"] for cell in solutions)
    assert len(solutions) == len(exercises)


def test_readme_gives_the_minutes_that_the_notebooks_give():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in PATHS:
        minutes = re.search(
            r"\*\*Minutes:\*\* (\d+)(?:, and (\d+) more for the exercises)?", read(path).cells[0].source
        )
        row = re.search(rf"\(notebooks/{path.name}\) \| [^|]+ \| (\d+) \|([^|]*)\|", readme)
        assert row, f"{path.name} is not in the README's table"
        assert (row[1], row[2].strip()) == (minutes[1], minutes[2] or ""), path.name


# ----------------------------------------------------------------------------------------------- figures


@every_notebook
def test_a_cell_shows_one_figure_at_most(path):
    assert {n: len(pictures_of(cell)) for n, cell in numbered(read(path), "code") if len(pictures_of(cell)) > 1} == {}


@every_notebook
def test_every_figure_is_described_in_metadata_and_in_print(path):
    for number, cell in numbered(read(path), "code"):
        printed = "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
        for picture in pictures_of(cell):
            alt = picture.metadata.get("image/png", {}).get("alt", "")
            assert 1 <= len(alt.split()) <= 40, f"cell {number}: alt {alt!r}"
            said = picture.data["text/plain"] if "explore_" in cell.source else printed  # an explorer has a caption
            assert alt in said, f"cell {number}"


@every_notebook
def test_pictures_are_small_enough_to_commit(path):
    sizes = [
        len(base64.b64decode(p.data["image/png"])) for _, c in numbered(read(path), "code") for p in pictures_of(c)
    ]
    assert max(sizes, default=0) < 400_000
    assert path.stat().st_size < 3_000_000


@pytest.mark.parametrize("path", [path for path in PATHS if path.stem[:2] != "00"], ids=lambda path: path.stem)
@pytest.mark.parametrize("lens", ["Angle lens:", "Mask lens:"])
def test_both_lenses_are_there_each_with_a_figure(path, lens):
    notebook = read(path)
    sections = [heading for heading in headings_of(notebook) if heading[2].startswith(lens)]
    assert sections
    for heading in sections:
        assert any(pictures_of(cell) for cell in cells_below(notebook, heading)), heading


# ------------------------------------------------------------------------------------------- what is absent


def names_in_the_course():
    """Public functions and classes of the modules that notebooks import and never paste."""
    names = set()
    for module in COURSE_MODULES:
        tree = ast.parse((ROOT / "helpers" / f"{module}.py").read_text(encoding="utf-8"))
        names |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return names


@every_notebook
def test_no_component_is_pasted(path):
    taken = names_in_the_course()
    assert {"RMSNorm", "apply_rope", "LlamaConfig", "KVCache", "load_checkpoint", "generate"} <= taken
    for number, cell in numbered(read(path), "code"):
        defined = {n.name for n in ast.walk(tree_of(cell)) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        assert not defined & taken, f"cell {number}"


FORBIDDEN = {
    "a path line": r"sys\.path",
    "an install": r"pip3? install|conda install",
    "a style setting": r"rcParams|plt\.style|mpl_style",
    "a warnings filter": r"warnings\.|filterwarnings",
    "plt.show": r"plt\.show\(",
    "a fixed device": r"\.cuda\(\)|device=[\"']cuda",
}


@every_notebook
@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_notebook_holds(path, what):
    cells = [(n, cell) for n, cell in numbered(read(path), "code") if "colab" not in tags_of(cell)]
    assert [number for number, cell in cells if re.search(FORBIDDEN[what], cell.source)] == []


# Characters that are shown as pictures by default (Unicode: Emoji_Presentation), and the switch to that form.
EMOJI = re.compile(
    "[\U0001f000-\U0001faff\ufe0f\u231a\u231b\u23e9-\u23f3\u25fd\u25fe\u2614\u2615\u2648-\u2653\u267f\u2693\u26a1"
    "\u26aa\u26ab\u26bd\u26be\u26c4\u26c5\u26ce\u26d4\u26ea\u26f2\u26f3\u26f5\u26fa\u26fd\u2705\u270a\u270b\u2728"
    "\u274c\u274e\u2753-\u2755\u2757\u2795-\u2797\u27b0\u27bf\u2b1b\u2b1c\u2b50\u2b55]"
)


@every_notebook
def test_no_emoji(path):
    for number, cell in numbered(read(path)):
        assert not EMOJI.search(cell.source + json.dumps(cell.get("outputs", []), ensure_ascii=False)), f"cell {number}"


@every_notebook
def test_images_in_text_are_described_and_live_here(path):
    for number, cell in numbered(read(path), "markdown"):
        for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)", cell.source):
            assert alt.strip(), f"cell {number}"
            assert (path.parent / target).is_file(), f"cell {number}"
        for tag in re.findall(r"<img[^>]*>", cell.source):
            assert re.search(r"alt=[\"'][^\"']+", tag), f"cell {number}"
            assert not re.search(r"src=[\"'](?:https?:)?//", tag), f"cell {number}"


# ------------------------------------------------------------------------------------------ what must be there


@every_notebook
def test_links_lead_somewhere(path):
    for number, cell in numbered(read(path), "markdown"):
        prose = re.sub(r"`[^`]*`", "", cell.source)
        for link in re.findall(r"\]\(([^)\s]+)\)|href=[\"']([^\"']+)", prose):
            target, _, anchor = unquote("".join(link)).partition("#")
            if "://" in target:
                continue
            place = path.parent / target if target else path
            assert place.exists(), f"cell {number}: {target}"
            if anchor and place.suffix == ".ipynb":
                anchors = re.findall(r"^#+ +(.*?) *$", "\n".join(c.source for c in read(place).cells), re.M)
                assert anchor in {heading.replace(" ", "-") for heading in anchors}, f"cell {number}: {anchor}"


@pytest.mark.parametrize("path", [path for path in PATHS if path.stem[:2] != "00"], ids=lambda path: path.stem)
@pytest.mark.parametrize("section", ["What you can now say", "Check yourself", "Where this lives"])
def test_every_notebook_ends_with(path, section):
    assert (2, section) in {(level, text) for _, level, text in headings_of(read(path))}


# ------------------------------------------------------------------------------------ the tool that makes them


def new_notebook(*sources, outputs=(), tags=()):
    """A notebook of code cells; outputs[i] is the stored stdout of cell i, or None for a cell that was not run."""
    cells = []
    for i, source in enumerate(sources):
        cell = nbformat.v4.new_code_cell(source, id=f"cell{i}")
        stored = outputs[i] if i < len(outputs) else None
        if stored is not None:
            cell.execution_count = i + 1
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=stored)] if stored else []
        if i < len(tags) and tags[i]:
            cell.metadata["tags"] = [tags[i]]
        cells.append(cell)
    return nbformat.v4.new_notebook(cells=cells)


@pytest.fixture
def device_variable(monkeypatch):
    """make_notebooks.execute sets COURSE_DEVICE for the kernel: put back what was there."""
    monkeypatch.setenv("COURSE_DEVICE", "unset by this test")


def test_the_fingerprint_follows_what_an_author_writes():
    notebook = new_notebook("a = 1", "print(a)")
    before = make_notebooks.source_hash(notebook)
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text="1\n")]
    notebook.cells[1].execution_count = 7
    notebook.metadata["anything"] = 1
    assert make_notebooks.source_hash(notebook) == before
    changes = [
        lambda cells: cells[0].update(source="a = 2"),
        lambda cells: cells[0].update(cell_type="markdown"),
        lambda cells: cells[0].metadata.update(tags=["figure"]),
        lambda cells: cells.reverse(),
        lambda cells: cells.pop(),
    ]
    for change in changes:
        notebook = new_notebook("a = 1", "print(a)")
        change(notebook.cells)
        assert make_notebooks.source_hash(notebook) != before


def test_a_changed_cell_makes_a_notebook_out_of_date():
    notebook = new_notebook("a = 1")
    assert not make_notebooks.is_up_to_date(notebook)
    make_notebooks.clean(notebook)
    assert make_notebooks.is_up_to_date(notebook)
    notebook.cells[0].source = "a = 2"
    assert not make_notebooks.is_up_to_date(notebook)


def test_clean_drops_what_differs_and_keeps_what_was_written():
    notebook = new_notebook("show()", outputs=["hello\n"], tags=["figure"])
    cell = notebook.cells[0]
    widget = {make_notebooks.WIDGET_VIEW: {"model_id": "1"}}
    cell.metadata.update(execution={"iopub.execute_input": "now"}, collapsed=False, jupyter={"source_hidden": True})
    picture = nbformat.v4.new_output("display_data", data={"image/png": "aGk=", "text/plain": "x", **widget})
    alone = nbformat.v4.new_output("display_data", data=dict(widget))
    cell.outputs += [picture, alone]
    notebook.metadata.update(widgets={"state": {}}, kernelspec={"name": "mine"}, language_info={"version": "3.11.2"})
    make_notebooks.clean(notebook)
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "source_hash": make_notebooks.source_hash(notebook),
    }
    assert cell.metadata == {"tags": ["figure"], "jupyter": {"source_hidden": True}}
    assert (cell.source, cell.id, cell.execution_count) == ("show()", "cell0", 1)
    assert cell.outputs[0].text == "hello\n"
    assert set(cell.outputs[1].data) == {"image/png", "text/plain"}
    assert set(cell.outputs[2].data) == {make_notebooks.WIDGET_VIEW}


def test_clean_keeps_the_last_state_of_a_progress_bar():
    texts = ["\r 0%", "\r50%", "\r100%\n", "done\n"]
    notebook = new_notebook("train()", outputs=["start\n"])
    for name, text in [*(("stdout", text) for text in texts), ("stderr", "apart\n")]:
        notebook.cells[0].outputs.append(nbformat.v4.new_output("stream", name=name, text=text))
    for _ in range(2):
        make_notebooks.clean(notebook)
        assert [(output.name, output.text) for output in notebook.cells[0].outputs] == [
            ("stdout", "start\n100%\ndone\n"),
            ("stderr", "apart\n"),
        ]


def test_executing_twice_gives_the_same_bytes(tmp_path, device_variable):
    path = tmp_path / "tiny.ipynb"
    nbformat.write(new_notebook("import os", "print(os.environ['COURSE_DEVICE'], os.getcwd())", "1 / 2"), path)
    path.chmod(0o640)
    runs = []
    for _ in range(2):
        make_notebooks.execute(path)
        runs.append(path.read_bytes())
    assert runs[0] == runs[1]
    notebook = read(path)
    assert make_notebooks.is_up_to_date(notebook)
    assert notebook.cells[1].outputs[0].text == f"cpu {tmp_path}\n"  # on the CPU, in the notebook's folder
    assert [cell.execution_count for cell in notebook.cells] == [1, 2, 3]
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny.ipynb"]
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_notebook_that_fails_is_left_as_it_was(tmp_path, device_variable):
    path = tmp_path / "tiny.ipynb"
    nbformat.write(new_notebook("print(1)", "1 / 0"), path)
    before = path.read_bytes()
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        make_notebooks.execute(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny.ipynb"]


def test_only_notebooks_whose_source_changed_are_executed(tmp_path, monkeypatch, capsys):
    old, new = tmp_path / "01_old.ipynb", tmp_path / "02_new.ipynb"
    done = new_notebook("a = 1")
    make_notebooks.clean(done)
    nbformat.write(done, old)
    nbformat.write(new_notebook("a = 1"), new)
    executed = []
    monkeypatch.setattr(make_notebooks, "execute", lambda path: executed.append(path.name) or 0.0)
    monkeypatch.setattr(make_notebooks, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["make_notebooks.py"])
    make_notebooks.main()
    assert executed == ["02_new.ipynb"]
    assert "01_old.ipynb: unchanged" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["make_notebooks.py", "--all"])
    make_notebooks.main()
    assert executed == ["02_new.ipynb", "01_old.ipynb", "02_new.ipynb"]


# ------------------------------------------------------------------------------------------- nbval and its repairs

TINY = {
    "right": new_notebook("a = 1", "print(a)", outputs=["", "1\n"]),
    "wrong": new_notebook("print(1)", "print(2)", outputs=["0\n", "2\n"]),
    "ignored": new_notebook("print(1)", outputs=["0\n"], tags=["nbval-ignore-output"]),
    "raises": new_notebook("a = 1", "1 / 0", "print(a)", "print(a)", outputs=["", "", "1\n", "1\n"]),
    "dies": new_notebook("a = 1", "import os; os._exit(1)", "print(a)", outputs=["", "", "1\n"]),
    "announced": new_notebook("1 / 0", "print(1)", outputs=[None, "1\n"], tags=["raises-exception"]),
}


@pytest.fixture(scope="module")
def nbval(tmp_path_factory):
    """{notebook: {cell: (outcome, seconds, text)}} of one pytest run over the tiny notebooks with our conftest.py."""
    place = tmp_path_factory.mktemp("nbval")
    (place / "conftest.py").write_bytes((ROOT / "conftest.py").read_bytes())
    (place / "tests").mkdir()
    (place / "tests" / "offline").symlink_to(ROOT / "tests" / "offline")
    (place / "pytest.ini").write_text("[pytest]\n")
    for name, notebook in TINY.items():
        nbformat.write(notebook, place / f"{name}.ipynb")
    command = (
        "-m pytest --nbval --nbval-current-env --nbval-cell-timeout=300 -q -p no:cacheprovider --junitxml=report.xml"
    )
    done = subprocess.run(
        [sys.executable, *command.split()],
        cwd=place, env=os.environ | {"COURSE_DEVICE": "cpu", "PYTEST_ADDOPTS": ""},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    results = {name: {} for name in TINY}
    for case in ElementTree.parse(place / "report.xml").iter("testcase"):
        inner = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        outcome = "passed" if inner is None else inner.tag
        text = "" if inner is None else f"{inner.get('message')}\n{inner.text}"
        notebook = re.search("|".join(TINY), case.get("classname") + case.get("file", ""))[0]
        results[notebook][case.get("name")] = (outcome, float(case.get("time")), text)
    return results


def outcomes(result):
    return [outcome for outcome, _, _ in result.values()]


def test_cells_are_counted_from_1(nbval):
    assert {name: list(cells) for name, cells in nbval.items()} == {
        name: [f"Cell {i + 1}" for i in range(len(notebook.cells))] for name, notebook in TINY.items()
    }


def test_right_outputs_pass(nbval):
    assert outcomes(nbval["right"]) == ["passed", "passed"]


def test_a_wrong_stored_output_fails_and_the_next_cell_still_runs(nbval):
    assert outcomes(nbval["wrong"]) == ["failure", "passed"]
    assert "Cell 1: Cell outputs differ" in nbval["wrong"]["Cell 1"][2]


def test_an_ignored_output_is_not_compared(nbval):
    assert outcomes(nbval["ignored"]) == ["passed"]


def test_cells_after_one_that_raised_are_skipped(nbval):
    assert outcomes(nbval["raises"]) == ["passed", "failure", "skipped", "skipped"]
    assert "ZeroDivisionError" in nbval["raises"]["Cell 2"][2]
    assert "Cell 2 raised" in nbval["raises"]["Cell 3"][2]


class Flaky:
    """Stands for nbval's way to start a kernel, which dies at its first starts."""

    def __init__(self, deaths):
        self.deaths, self.calls = deaths, 0

    def __call__(self, name, stderr, cwd):
        self.calls += 1
        if self.calls > self.deaths:
            return name, cwd
        stderr.write(b"Address already in use")
        raise RuntimeError("Kernel died before replying to kernel_info")


def test_a_kernel_that_dies_at_its_start_is_started_again():
    with open(os.devnull, "w") as stderr:
        assert conftest._start_new_kernel("k", stderr=stderr, cwd="c", start=Flaky(deaths=2)) == ("k", "c")
        assert stderr.closed


def test_a_kernel_that_never_starts_is_an_error_with_its_own_words():
    start = Flaky(deaths=9)
    with open(os.devnull, "w") as stderr, pytest.raises(RuntimeError, match="Kernel died") as caught:
        conftest._start_new_kernel("k", stderr=stderr, cwd="c", start=start)
    assert start.calls == 3
    assert "Address already in use" in caught.value.__notes__[-1]


def test_an_announced_exception_stops_nothing(nbval):
    assert outcomes(nbval["announced"]) == ["passed", "passed"]


def test_a_dead_kernel_fails_at_once_and_says_so(nbval):
    assert outcomes(nbval["dies"]) == ["passed", "failure", "skipped"]
    _, seconds, text = nbval["dies"]["Cell 2"]
    assert "the kernel died while it ran this cell" in text
    assert seconds < 100  # a few seconds on a quiet machine; the cell time-out is 300


@pytest.mark.parametrize(("device", "strict"), [("cpu", True), ("cuda", False)])
def test_outputs_are_compared_on_the_cpu_only(monkeypatch, device, strict):
    spec = importlib.util.spec_from_file_location("conftest_under_test", ROOT / "conftest.py")
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    monkeypatch.setattr(conftest, "pick_device", lambda: SimpleNamespace(type=device))
    config = SimpleNamespace(option=SimpleNamespace(nbval=True, nbval_lax=False))
    conftest.pytest_configure(config)
    assert (config.option.nbval, config.option.nbval_lax) == (strict, not strict)
