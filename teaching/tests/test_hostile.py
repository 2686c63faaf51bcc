"""Notebooks, names and submissions made to do harm run nothing in a browser, a spreadsheet or the teacher's folder."""

import csv
import io
import re
from html.parser import HTMLParser

import pytest

from teaching.classroom import grade
from tests.support.submissions import EXERCISES, NORM, handed_out, solved, write

pytestmark = pytest.mark.slow

PROGRAM = '<script>alert(1)<script><img src=x onerror="alert(1)">'  # as the name of a file
MARKUP = "</td><script>alert(1)</script><img src=x onerror=alert(1)> [a](javascript:alert`1`) ![b](x:y) <x@y.zz> &lt;"
RAISES = f"def my_rms_norm(x, weight, eps):\n    raise ValueError({MARKUP!r})"
NAMED = f"""
FORMULA = type("=cmd|' /C calc'!A1;=1+1", (Exception,), {{}})


def my_rms_norm(x, weight, eps, kind=(_ for _ in ()).throw(FORMULA({MARKUP!r}))):
    return x
"""
ALLOWED = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "ul", "ol", "li", "div", "table"}
ALLOWED |= {"thead", "tbody", "tr", "th", "td", "a", "b", "q", "br", "span", "details", "summary"}


def tags_of(page):
    """Every tag with the names of its attributes."""
    parser, found = HTMLParser(), set()
    parser.handle_starttag = lambda tag, given: found.update([(tag, ""), *((tag, name) for name, _ in given)])
    parser.feed(page)
    return found


def formulas_of(table):
    """Cells that a spreadsheet takes for a formula: it cuts at commas, semicolons (in half of Europe) or tabs."""
    cells = [cell for mark in ",;\t" for row in csv.reader(io.StringIO(table), delimiter=mark) for cell in row]
    return [cell for cell in cells if cell.lstrip(' \t\r\n"').startswith(tuple("=+-@＝＋－＠"))]


def test_no_page_of_feedback_runs_anything_and_no_cell_of_the_table_is_a_formula(tmp_path):
    """Of a class whose names, files and errors are programs."""
    folder = tmp_path / "handed in"
    names = ['=HYPERLINK("x")', "+1", "-2+3;=1+1", "@SUM(1)", "＝1", ' ;"=1+1', PROGRAM]
    for name in names:
        write(folder / name / f"{NORM}.ipynb", handed_out())
    for name, answer in {"raises": RAISES, "named\n=1+1\n# heading": NAMED}.items():
        write(folder / name / f"{NORM}.ipynb", solved({"my_rms_norm": answer}))
    write(folder / "+1" / f"{PROGRAM}.txt", "")
    grade.main([str(folder), "--only", "01", "--no-isolation"])
    results = tmp_path / "handed in_graded"
    pages = [path.read_text(encoding="utf-8") for path in [*(results / "feedback").iterdir(), results / "class.html"]]
    assert len(pages) == 10
    assert "&lt;script&gt;" in "".join(pages)  # the text came through
    for page in pages:
        found = tags_of(page)
        assert {tag for tag, _ in found} <= ALLOWED
        assert not [name for _, name in found if name.startswith("on") or name == "src"]
        assert all(link.startswith("feedback/") for link in re.findall(r'href="([^"]*)', page))
        assert page.count("<h1>") == 1
    assert formulas_of('a,"b;"" =1"\n') == [' =1"']
    for name in ("exercises.csv", "grades.csv"):
        table = (results / name).read_bytes().decode()
        assert {len(row) for row in csv.reader(io.StringIO(table))} in ({5 + len(EXERCISES)}, {10})
        assert formulas_of(table) == []
    assert "'=cmd|' /C calc'!A1;'=1+1: </td>" in (results / "exercises.csv").read_text(encoding="utf-8")
