"""Notebooks, names and submissions made to do harm run nothing in a browser, a spreadsheet or the teacher's folder."""

import csv
import io
import re
from html.parser import HTMLParser

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tests.support.course import ROOT
from tests.support.submissions import NORM, solved, write
from tools.classroom import grade

pytestmark = pytest.mark.slow

# -------------------------------------------------------------------------- notebooks with programs in outputs

SCRIPT, IMAGE = "<script>alert(1)</script>", '<img src=x onerror="alert(1)">'
STORED = [  # outputs that run in a browser, if anything lets them
    new_output("display_data", {"text/html": f"<p>shown</p>{SCRIPT}{IMAGE}<a href='javascript:alert(1)'>a</a>"}),
    new_output("display_data", {"application/javascript": "alert(1)", "text/plain": "shown"}),
    new_output("display_data", {"text/markdown": f"shown {SCRIPT} [a](javascript:alert(1))"}),
    new_output("stream", name="stdout", text=SCRIPT + IMAGE),
]
MARKUP = "</td><script>alert(1)</script><img src=x onerror=alert(1)> [a](javascript:alert`1`) ![b](x:y) <x@y.zz> &lt;"
RAISES = f"""
def my_rms_norm(x, weight, eps):
    raise ValueError({MARKUP!r})
"""
NAMED = f"""
FORMULA = type("=cmd|' /C calc'!A1;=1+1", (Exception,), {{}})


def my_rms_norm(x, weight, eps, kind=(_ for _ in ()).throw(FORMULA({MARKUP!r}))):
    return x
"""
ALLOWED = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "ul", "ol", "li", "div", "table"}
ALLOWED |= {"thead", "tbody", "tr", "th", "td", "a", "b", "q", "br", "span", "details", "summary"}


class Tags(HTMLParser):
    """Every tag with the names of its attributes."""

    def __init__(self, page):
        super().__init__()
        self.found = set()
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found |= {(tag, "")} | {(tag, name) for name, _ in attributes}


def cells_of(table):
    """The cells that spreadsheets see: they cut at commas, semicolons (in half of Europe) or tabs."""
    return [cell for mark in ",;\t" for row in csv.reader(io.StringIO(table), delimiter=mark) for cell in row]


def starts_a_formula(cell):
    return cell.lstrip(' \t\r\n"').startswith(tuple("=+-@＝＋－＠"))


def test_no_page_of_feedback_runs_anything_and_no_cell_of_the_table_is_a_formula(tmp_path):
    """Of a class whose names, files and errors are programs."""
    folder = tmp_path / "handed in"
    names = ['=HYPERLINK("x")', "+1", "-2+3;=1+1", "@SUM(1)", "＝1", ' ;"=1+1', f"{SCRIPT}{IMAGE}".replace("/", "")]
    for name in [*names, "raises", "named\n=1+1\n# heading"]:
        answer = {"raises": RAISES, "named\n=1+1\n# heading": NAMED}.get(name)
        write(folder / name / f"{NORM}.ipynb", solved({"my_rms_norm": answer} if answer else {}))
    write(folder / "+1" / f"{IMAGE} {SCRIPT}.txt".replace("/", ""), "")
    grade.main([str(folder), "--only", "01", "--no-isolation"])
    results = tmp_path / "handed in_graded"
    pages = [path.read_text(encoding="utf-8") for path in [*(results / "feedback").iterdir(), results / "class.html"]]
    assert len(pages) == 10
    assert "&lt;script&gt;" in "".join(pages)  # the text came through
    for page in pages:
        found = Tags(page).found
        assert {tag for tag, _ in found} <= ALLOWED
        assert not [name for _, name in found if name.startswith("on") or name == "src"]
        assert all(link.startswith("feedback/") for link in re.findall(r'href="([^"]*)', page))
        assert page.count("<h1>") == 1
    for name, width in (("exercises.csv", 9), ("grades.csv", 9)):
        table = (results / name).read_bytes().decode()
        assert {len(row) for row in csv.reader(io.StringIO(table))} == {width}
        assert [cell for cell in cells_of(table) if starts_a_formula(cell)] == []
    assert "'=cmd|' /C calc'!A1;'=1+1: </td>" in (results / "exercises.csv").read_text(encoding="utf-8")


def programs_in(notebook):
    """What a reader's browser could run: outputs beside the known kinds, and HTML beside the course's own tags."""
    kinds = {"image/png", "text/plain", "text/html", "text/markdown", "application/vnd.jupyter.widget-view+json"}
    tags = {(tag, "") for tag in ("details", "summary", "div", "strong", "em", "br")}
    for number, cell in enumerate(notebook.cells, 1):
        pages = [cell.source] if cell.cell_type in ("markdown", "raw") else []
        for output in cell.get("outputs", []):
            yield from (f"cell {number}: {kind}" for kind in output.get("data", {}) if kind not in kinds)
            pages += [output.get("data", {}).get(kind, "") for kind in ("text/html", "text/markdown")]
        for page in pages:
            yield from (f"cell {number}: <{' '.join(tag)}>" for tag in Tags(page).found - tags)
            links = re.findall(r"\b(?:javascript|data|vbscript):\S+", page, re.I)
            yield from (f"cell {number}: {link}" for link in links)


def test_the_notebooks_of_the_course_hold_no_program_for_the_browser():
    """The website is built from these files."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        assert list(programs_in(nbformat.read(path, as_version=4))) == [], path.name


def test_a_script_a_formula_and_a_program_in_a_notebook_are_noticed():
    assert ("script", "") in Tags("a | <script>alert(1)</script>").found
    assert [starts_a_formula(cell) for cell in cells_of('a,"b;"" =1"\n')] == [False, False, False, True, False]
    found = list(programs_in(new_notebook(cells=[new_code_cell("", outputs=STORED)])))
    for part in ("<script >", "<img onerror>", "<a href>", "javascript:alert(1)", "application/javascript"):
        assert any(part in one for one in found), part
