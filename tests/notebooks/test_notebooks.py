"""The committed notebooks are clean, executed, described and whole."""

import ast
import html
import itertools
import re
import statistics

import nbformat
import pytest
from markdown_it import MarkdownIt
from nbconvert.filters import markdown2html_mistune

from tests.support.course import ROOT, notebooks
from tools import notebooks as make_notebooks
from tools import reading

NOTEBOOKS = notebooks()
LESSONS = [stem for stem in NOTEBOOKS if stem != "00_start_here"]


def cells(kind=None, stem=None):
    """(place, cell) of all notebooks or of one; places count from 1, as JupyterLab's reader does."""
    for name in [stem] if stem else NOTEBOOKS:
        found = ((f"{name}, cell {n}", cell) for n, cell in enumerate(NOTEBOOKS[name].cells, 1))
        yield from ((place, cell) for place, cell in found if kind in (None, cell.cell_type))


def outputs():
    return [(place, cell, output) for place, cell in cells("code") for output in cell.outputs]


def tags_of(cell):
    return set(cell.metadata.get("tags", []))


def pictures_of(cell):
    return [output for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]


@pytest.mark.parametrize("stem", NOTEBOOKS)
def test_a_notebook_is_as_the_tool_leaves_it(stem):
    text = (ROOT / "notebooks" / f"{stem}.ipynb").read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    make_notebooks.clean(notebook)
    assert text == nbformat.writes(notebook) + "\n", "run `make notebooks`; if words alone changed, ARGS=--text"
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run once, from top to bottom"


def test_no_cell_failed_unless_it_says_so_and_none_wrote_to_stderr():
    failed = {place for place, _, output in outputs() if output.output_type == "error"}
    assert failed == {place for place, cell in cells("code") if "raises-exception" in tags_of(cell)}
    assert [(place, output.text) for place, _, output in outputs() if output.get("name") == "stderr"] == []


def test_outputs_name_no_address_and_no_place_on_a_machine():
    private = re.compile(r" at 0x[0-9a-f]{6,}|(?<![\w.~-])/(?:home|Users|tmp|root)/|[A-Z]:\\Users")
    for place, _, output in outputs():
        texts = [output.get("text", ""), *(v for k, v in output.get("data", {}).items() if k.startswith("text/"))]
        assert not [hit[0] for text in texts for hit in private.finditer(text)], place


def verdicts(cell):
    """What the checks of a cell said: "not attempted yet", "passed" or "not yet"."""
    said = "\n".join(output.data.get("text/plain", "") for output in cell.outputs if "data" in output)
    return re.findall(r"^\w+: (not attempted yet|passed|not yet)\.", said, re.M)


@pytest.mark.parametrize("stem", LESSONS)
def test_exercises_are_open_and_solutions_pass(stem):
    code = [cell for cell in NOTEBOOKS[stem].cells if cell.cell_type == "code"]
    exercises, again = ([cell for cell in code if tag in tags_of(cell)] for tag in ("exercise", "recall"))
    checked = [cell for cell in code if re.search(r"^check_\w+\(", cell.source, re.M)]
    solutions = [cell for cell in checked if cell not in exercises + again]
    for verdict, those in (("not attempted yet", exercises + again), ("passed", solutions)):
        for cell in those:
            assert verdicts(cell) == [verdict], f"`make notebooks ARGS={stem}`, then mend it:\n{cell.source}"
    assert len(solutions) == len(exercises) > 0
    taught, _, left = "\n".join(cell.source for cell in NOTEBOOKS[stem].cells).partition("\n## Exercises")
    assert re.findall(r"^### Exercise (\d)", taught + left, re.M) == [str(n + 1) for n in range(len(exercises))]
    assert "\n### Exercise 1." in taught
    for cell, below in itertools.pairwise(NOTEBOOKS[stem].cells):
        if "exercise" in tags_of(cell):  # help comes in three steps
            assert re.findall(r"<summary>(.*?)</summary>", below.source) == ["Hint", "First step", "Fuller hint"]


@pytest.mark.parametrize("stem", [stem for stem in LESSONS if stem != "01_rmsnorm"])
def test_a_click_on_a_choice_says_whether_it_is_right(stem):
    (cell,) = (cell for _, cell in cells("markdown", stem) if cell.source.startswith("## From earlier"))
    questions = re.split(r"\n\n\d\. ", cell.source)[1:]
    assert len(questions) == 3
    for question in questions:
        said = re.findall(r"<details><summary>([ABC])\. .+</summary>(Right(?=\. .)|No: [ABC](?=\.<))", question)
        (right,) = (letter for letter, verdict in said if verdict == "Right")
        assert [letter for letter, _ in said] == ["A", "B", "C"]
        assert {verdict for _, verdict in said} == {"Right", f"No: {right}"}


@pytest.mark.parametrize("stem", NOTEBOOKS)
def test_what_answers_a_question_comes_right_below_it_and_is_folded(stem):
    found = NOTEBOOKS[stem].cells
    for place, cell in enumerate(found):
        if "predict" in tags_of(cell):
            below = itertools.takewhile(lambda one: one.cell_type == "code", found[place + 1 :])
            folded = any(one.metadata.get("jupyter", {}).get("outputs_hidden") for one in below)
            assert folded, f"{stem}, cell {place + 1}: no output below this question is folded"
            assert cell.source.split("\n\n")[-1].startswith("**Predict.**"), f"{stem}, cell {place + 1}"


@pytest.mark.parametrize("stem", NOTEBOOKS)
def test_no_open_code_between_a_question_and_its_fold_tells_the_answer(stem):
    """What is read, and what tells an answer, stands in `answers_seen`. All that draws is tagged, and so folded."""
    assert reading.answers_seen(NOTEBOOKS[stem]) == []
    for place, cell in cells("code", stem):
        drawn = bool(pictures_of(cell)) == ("figure" in tags_of(cell))
        assert drawn or "explore_" in cell.source, f"{place}: what draws is tagged figure, and nothing else"


def test_every_figure_is_alone_in_its_cell_and_described_in_metadata_and_in_print():
    for place, cell in cells("code"):
        pictures = pictures_of(cell)
        assert len(pictures) <= 1, place
        assert sum(len(picture.data["image/png"]) for picture in pictures) < 540_000, f"{place}: too large to commit"
        printed = "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
        for picture in pictures:
            alt = picture.metadata.get("image/png", {}).get("alt", "")
            assert 1 <= len(alt.split()) <= 40, f"{place}: alt {alt!r}"
            assert alt in picture.data["text/plain"], place  # for tools that show no alt
            if "explore_" not in cell.source:  # it has a caption
                assert alt in " ".join(printed.split()), place


@pytest.mark.parametrize("stem", LESSONS)
def test_run_all_ends_on_a_page_of_its_own_and_not_inside_the_folded_solutions(stem):
    """JupyterLab goes to the last cell, and unfolds the section that holds it."""
    *_, solved, last = (cell for _, cell in cells("markdown", stem) if re.match("## ", cell.source))
    assert solved.source.startswith("## Solutions")
    assert solved.metadata["jp-MarkdownHeadingCollapsed"]
    assert last.source.startswith("## The end\n")
    assert last == NOTEBOOKS[stem].cells[-1]


ENGINES = {
    "markdown-it": MarkdownIt("commonmark", {"html": True}).enable("table").render,
    "mistune": markdown2html_mistune,
}
NO_WORDS = re.compile(r"<(code|pre|script|style)\b.*?</\1>|<[^>]*>", re.S)  # of a page: code, and tags
FORMULA = re.compile(r"\$\$.+?\$\$|\$[^$\n]+?\$", re.S)  # MathJax reads it on the page
MARK = re.compile(r"\*\*|\*(?=\w)|(?<=\w)\*|`|\$|~~|\]\(|^#+ |^\|", re.M)


def raw_marks(source):
    """What a reader would see of Markdown's own marks, by engine."""
    pages = {engine: html.unescape(NO_WORDS.sub("", render(source))) for engine, render in ENGINES.items()}
    return {engine: found for engine, page in pages.items() if (found := MARK.findall(FORMULA.sub("", page)))}


def test_no_text_shows_a_mark_of_markdown():
    """Marks stay raw where HTML begins a line: in it Markdown is not read, so write `<code>` and `<b>` there."""
    for fault in ("<details><summary>A</summary>In `b`.</details>", "**\\*no **", "5 $ and `a", "| a\n[b] (c](d)"):
        assert raw_marks(fault).keys() == ENGINES.keys(), fault
    assert raw_marks("**a** `b**` $c * d$, *e* [f](g)\n\n| h |\n|---|\n| i |\n\n<details>\n\n`j`\n\n</details>") == {}
    assert {place: found for place, cell in cells("markdown") if (found := raw_marks(cell.source))} == {}


@pytest.mark.parametrize("stem", NOTEBOOKS)
def test_cells_are_short_and_the_minutes_stated_are_those_of_the_rule(stem):
    lines = [sum(bool(line.strip()) for line in cell.source.splitlines()) for _, cell in cells("code", stem)]
    assert max(lines) <= 25
    assert statistics.quantiles(lines, n=10, method="inclusive")[8] <= 16
    assert statistics.median(lines) <= 8
    stated = int(re.search(r"\*\*Minutes:\*\* (\d+)", NOTEBOOKS[stem].cells[0].source)[1])
    lessons = reading.minutes(NOTEBOOKS[stem])
    assert abs(sum(lessons) - stated) <= 5  # rounded
    assert max(lessons) <= 77  # a class of 90 minutes holds one
    assert max(len(line) for _, cell in cells("code", stem) for line in cell.source.splitlines()) <= 100
    texts = [(place, cell) for place, cell in cells("markdown", stem) if cell.id != "earlier"]  # three questions
    assert [place for place, cell in texts if reading.words_in(cell.source) > 180] == []


@pytest.mark.parametrize("stem", NOTEBOOKS)
def test_a_notebook_is_told_in_full_and_has_no_more_ideas_than_a_lesson_holds(stem):
    """A floor, no aim: a bound on words alone is met by deleting *because*."""
    colons, links = reading.telling(NOTEBOOKS[stem])
    assert colons <= 12, "colons in 1,000 words: write because, so, but, that is"
    assert links >= 9, "links in 1,000 words: what follows from what?"
    texts = [cell.source for _, cell in cells("markdown", stem)]
    solutions = next((n for n, text in enumerate(texts) if text.startswith("## Solutions")), len(texts))
    exercises = next((n for n, text in enumerate(texts) if text.startswith("## Exercises")), len(texts))
    words = [reading.words_in(text) for text in texts[:solutions]]
    assert sum(words) <= {"05": 3900}.get(stem[:2], 3600)
    assert max(n for n, text in zip(words, texts[:solutions], strict=True) if "## From earlier" not in text) <= 150
    assert sum("**Predict.**" in text for text in texts[:exercises]) <= 9
    assert sum(bool(re.match(r"## \d\.\d", text)) for text in texts[:exercises]) <= 8


@pytest.mark.parametrize("stem", LESSONS)
def test_a_lesson_pastes_no_part_of_the_model_and_has_both_lenses_as_figures(stem):
    model = ast.parse((ROOT / "helpers" / "model.py").read_text(encoding="utf-8"))
    parts = "|".join(node.name for node in model.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    pasted = re.compile(rf"^(def|class) ({parts})\b", re.M)
    assert [place for place, cell in cells("code", stem) if pasted.search(cell.source)] == []
    for lens in ("Angle lens:", "Mask lens:"):
        found = [re.search(rf"^#+ (\d\.\d+ )?{lens}", cell.source, re.M) for cell in NOTEBOOKS[stem].cells]
        start = next((place for place, heading in enumerate(found) if heading), len(found))
        assert any(map(pictures_of, NOTEBOOKS[stem].cells[start:][:12])), f"no {lens} as a heading, with a figure"


def test_what_tutorials_say_is_said_by_one_and_gets_a_verdict():
    texts = [cell.source for _, cell in cells("markdown")]
    verdicts = [word for text in texts for word in re.findall(r"<summary>.*?\*\*Verdict\*\*: (\w+)", text, re.S)]
    claims = [claim for text in texts for claim in re.findall(r'\*\*Tutorials say: "(.*?)"\*\*(.*)', text)]
    assert [claim for claim, source in claims if "](https://" not in source] == []
    assert len(claims) == len(verdicts) > 0
