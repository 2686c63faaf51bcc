"""The tables of docs/teaching.md name what the notebooks have, and a class fits its minutes."""

import re
from functools import cache

import nbformat
import pytest
from nbformat.v4 import new_notebook

from teaching.classroom.submissions import read_course
from tests.support.course import ROOT
from tools.course import notebooks_of
from tools.reading import minutes

TEACHING = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
CLASSES = {part[6]: part for part in re.split(r"^##+ ", TEACHING, flags=re.M) if part.startswith("Class ")}


def rows_of(text, first):
    """The lines of all tables whose first cell is so, as lists of cells."""
    lines = ([cell.strip() for cell in line.split(" | ")] for line in re.findall(r"^\| (.*) \|$", text, re.M))
    return [cells for cells in lines if re.fullmatch(first, cells[0])]


OVERVIEW = {cells[0][1]: cells for cells in rows_of(TEACHING, r"\[\d\].*")}  # of all classes


def plan_of(number):
    """(minutes, section, where to stop, what to ask) of each row of a class."""
    rows = rows_of(CLASSES[number], r"\d+–\d+")
    return [(int(span.partition("–")[2]) - int(span.partition("–")[0]), *rest) for span, *rest in rows]


@cache
def cells_of(number, start, end="## "):
    """The cells of notebook `number` from the one that matches `start` up to the next that matches `end`."""
    found = []
    for cell in nbformat.read(notebooks_of(ROOT / "notebooks", [number])[0], as_version=4).cells:
        text = cell.source if cell.cell_type == "markdown" else ""
        if found and re.match(end, text):
            break
        if found or re.match(start, text):
            found.append(cell)
    assert found, f"docs/teaching.md names {start} of notebook {number}, which has none"
    return found


def section(name):
    """The cells of section "1.3"."""
    return cells_of(f"0{name[0]}", rf"## {re.escape(name)} ")


def words_of(name, kind):
    """Its code or text, cell by cell, on one line each."""
    return [" ".join(cell.source.split()) for cell in section(name) if cell.cell_type == kind]


def exercise_minutes(name):
    """Of exercise "01.2", as its text states them."""
    number, n = name.split(".")
    return int(re.search(r"^\*\*(\d+)", cells_of(number, rf"### Exercise {n}\b", "##")[0].source, re.M)[1])


def exercises_in(text):
    """ "01.2" and "01.3" for "01 exercises 2 and 3"."""
    found = []
    for number, rest in re.findall(r"\b(0\d)(?: \|)? exercises? (\d(?:(?:, | and | to )\d\b)*)(?! begun)", text):
        named = [int(n) for n in re.findall(r"\d", rest)]
        found += [f"{number}.{n}" for n in (range(named[0], named[-1] + 1) if " to " in rest else named)]
    return found


def test_every_section_exercise_and_question_that_the_page_names_exists():
    named = set(re.findall(r"\b\d\.\d+\b", re.sub(r"`[^`]+`|“[^”]+”|\b3\.1[123]\b", "", TEACHING)))  # 3.1x: Python
    assert len([section(name) for name in named]) > 10
    assert len({name for name in exercises_in(TEACHING) if exercise_minutes(name)}) > 20
    questions = set(re.findall(r"\b(0\d)(?: \|[^|]*\|)? question (\d)", TEACHING))
    assert len(questions) > 10
    for number, n in questions:
        assert f"\n{n}. " in cells_of(number, "## Check yourself")[0].source, (number, n)


def test_points_of_the_notebooks_are_the_homework_and_what_the_page_asks_for():
    asked = [one for exercises, _ in read_course().values() for one in exercises]
    paid = [f"{one.notebook[:2]}.{one.title[0]}" for one in asked if one.points and one.check]
    assessment = TEACHING[TEACHING.index("## Assessment") :]
    assert sorted(name for cells in OVERVIEW.values() for name in exercises_in(cells[-1])) == paid
    assert sorted(exercises_in(assessment.partition("\n- ")[0])) == paid
    assert f"{sum(one.points for one in asked) + assessment.count('| question ')} points;" in assessment


@pytest.mark.parametrize("number", OVERVIEW)
def test_a_class_stops_at_what_is_there_and_fits_its_minutes_by_the_recipe(number):
    """A vote takes ten minutes, another prediction three, a question on paper four, a section 5/12 of its reading."""
    least, votes, rows = 0.0, 0, plan_of(number)
    for _, name, stops, ask in rows:
        least += 4 * (" question " in stops) + sum(map(exercise_minutes, exercises_in(stops)))
        if not name:
            continue
        least += sum(minutes(new_notebook(cells=section(name)))) * 5 / 12
        code, text = (words_of(name, kind) for kind in ("code", "markdown"))
        for stop in (a or b for a, b in re.findall(r"`(.+?)`|“(.+?)”", stops)):
            assert any(" ".join(stop.split()) in source for source in code), stop
        for vote, asked in re.findall(r"(\*\*Vote:\*\* )?“(.+?)”", ask):
            assert asked.removesuffix("…") in " ".join(text), asked  # its first words
            votes, least = votes + bool(vote), least + (10 if vote else 3)
    assert (least <= sum(row[0] for row in rows) <= 90, votes) == (True, 1), least


def test_the_table_of_all_classes_says_what_the_tables_of_each_say():
    for number, (link, taken, live, read_at_home, exercises) in OVERVIEW.items():
        rows, name = plan_of(number), CLASSES[number].partition("\n")[0]
        anchor = re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")
        assert link == f"[{number}](#{anchor})"
        assert (taken, live) == (str(sum(row[0] for row in rows)), ", ".join(row[1] for row in rows if row[1]))
        at_home = [sum(minutes(new_notebook(cells=section(one)))) for one in re.findall(r"\d\.\d+", read_at_home)]
        for cell, each in ((read_at_home, at_home), (exercises, map(exercise_minutes, exercises_in(exercises)))):
            if said := re.search(r"\((\d+) min\)", cell):
                assert number == "0" or abs(int(said[1]) - sum(each)) <= 3, cell
