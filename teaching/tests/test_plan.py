"""The teacher's plan names what is there, and a class fits its minutes."""

import re

import nbformat
import pytest
from nbformat.v4 import new_notebook

from teaching.classroom import plan
from teaching.classroom.submissions import read_course
from tests.support.course import ROOT
from tools.reading import minutes

TEACHING = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
PLAN = plan.read_plan()


def minutes_of(section):
    return minutes(new_notebook(cells=plan.cells_of(section)))


def exercise_minutes(name):
    return int(re.search(r"^\*\*(\d+)", plan.exercise(name), re.M)[1])


def test_every_section_exercise_and_question_that_the_plan_names_exists():
    named = set(re.findall(r"\b\d\.\d+\b", re.sub(r"`[^`]+`|“[^”]+”|\b3\.1[123]\b", "", TEACHING)))  # 3.1x: Python
    assert len([plan.cells_of(name) for name in named]) > 10  # raises where there is none
    questions = re.findall(r"\b(0\d)(?: \|[^|]*\|)? question (\d)", TEACHING)
    assert len({plan.question(".".join(name)) for name in questions}) > 10
    assert len({plan.exercise(name) for name in plan.exercises_named(TEACHING) if "." in name}) > 20


def test_points_of_the_notebooks_are_the_homework_and_what_the_plan_asks_for():
    asked = [one for exercises, _ in read_course().values() for one in exercises]
    paid = [f"{one.notebook[:2]}.{one.title[0]}" for one in asked if one.points and one.check]
    assessment = TEACHING[TEACHING.index("## Assessment") :]
    assert sorted(name for one in PLAN for name in one.homework if "." in name) == paid
    assert sorted(plan.exercises_named(assessment.partition("\n- ")[0])) == paid
    assert f"{sum(one.points for one in asked) + assessment.count('| question ')} points;" in assessment


@pytest.mark.parametrize("one", PLAN, ids=lambda one: one.number)
def test_a_class_stops_at_what_is_there_and_fits_its_minutes_by_the_recipe(one):
    """A vote takes ten minutes, another prediction three, a question on paper four, a section half of its reading."""
    sections = [row.section for row in one.rows if row.section]
    least = sum(10 if asked.vote else 3 for row in one.rows for asked in row.ask)
    least += sum(4 * bool(row.question) + (exercise_minutes(row.exercise) if row.exercise else 0) for row in one.rows)
    assert least + sum(map(minutes_of, sections)) / 2 <= one.minutes <= 90
    assert [asked.vote for row in one.rows for asked in row.ask].count(True) == 1
    for row in one.rows:
        code = [cell.source for cell in plan.cells_of(row.section) if cell.cell_type == "code"] if row.section else []
        assert [stop for stop in row.stops if not any(stop in source for source in code)] == []


def test_the_table_of_all_classes_says_what_the_tables_of_each_say():
    for one in PLAN:
        link = re.sub(r"[^\w\- ]", "", one.name.lower()).replace(" ", "-")
        live = ", ".join(row.section for row in one.rows if row.section)
        found = re.search(
            rf"^\| \[{one.number}\]\(#{link}\) \| {one.minutes} \| {live} \| (.*) \| (.*) \|$", TEACHING, re.M
        )
        assert found, one.name
        for cell, taken, names in (
            (found[1], minutes_of, re.findall(r"\d\.\d+", found[1])),
            (found[2], exercise_minutes, one.homework),
        ):
            if said := re.search(r"\((\d+) min\)", cell):
                assert one.number == "0" or abs(int(said[1]) - sum(map(taken, names))) <= 3, cell


def test_what_is_asked_stands_in_the_notebook_and_an_option_is_right():
    for path in sorted((ROOT / "notebooks").glob("0*.ipynb")):
        said = ""
        for cell in nbformat.read(path, as_version=4).cells:
            said += " ".join(cell.source.split()) if cell.cell_type == "markdown" else ""
            for data in cell.metadata.get("questions", []):
                assert data["ask"] in said, cell.id
                assert "options" not in data or data["answer"] - 1 in range(len(data["options"])), cell.id
