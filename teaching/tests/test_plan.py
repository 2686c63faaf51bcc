"""The teacher's plan names what is there, and a class fits its minutes."""

import re

import pytest
from nbformat.v4 import new_notebook

from teaching.classroom import plan
from teaching.classroom.submissions import read_course
from tests.support.course import ROOT
from tools.reading import minutes

TEACHING = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
PLAN = plan.read_plan()


def exercises_named(text):
    """(notebook, exercise) pairs of "01 exercise 2", "02 | exercises 2, 3 and 4", "07 exercises 1 to 3"."""
    for number, rest in re.findall(r"\b(0\d)(?: \|)? exercises? (\d(?:(?:, | and | to )\d\b)*)", text):
        named = [int(n) for n in re.findall(r"\d", rest)]
        yield from ((number, n) for n in (range(named[0], named[-1] + 1) if " to " in rest else named))


def test_every_section_exercise_and_question_that_the_plan_names_exists():
    named = set(re.findall(r"\b\d\.\d+\b", re.sub(r"`[^`]+`|“[^”]+”|\b3\.1[123]\b", "", TEACHING)))  # 3.1x: Python
    assert len([plan.cells_of(name) for name in named]) > 10  # raises where there is none
    questions = re.findall(r"\b(0\d)(?: \|[^|]*\|)? question (\d)", TEACHING)
    assert len({plan.question(" ".join(name)) for name in questions}) > 10  # raises where there is none
    assert len({plan.exercise(f"{number} {n}")[0].source for number, n in exercises_named(TEACHING)}) > 20


def test_points_of_the_notebooks_are_the_homework_and_what_the_plan_asks_for():
    asked = [one for exercises, _ in read_course(ROOT / "notebooks").values() for one in exercises]
    paid = [(one.notebook[:2], int(one.title[0])) for one in asked if one.points and one.check]
    homework = [(name[:2], int(name[3:])) for one in PLAN for name in one.exercises if " " in name]
    assessment = TEACHING[TEACHING.index("## Assessment") :]
    assert sorted(homework) == paid
    assert sorted(exercises_named(assessment.partition("\n- ")[0])) == paid
    assert f"{sum(one.points for one in asked) + assessment.count('| question ')} points;" in assessment


@pytest.mark.parametrize("one", PLAN, ids=lambda one: one.number)
def test_a_class_stops_at_what_is_there_and_fits_its_minutes_by_the_recipe(one):
    kinds = [asked.kind for row in one.rows for asked in row.ask]
    least = sum({"vote": 10, "say": 1}.get(kind, 3) for kind in kinds) + 4 * sum(bool(row.question) for row in one.rows)
    least += sum(plan.exercise_minutes(row.exercise) for row in one.rows if row.exercise)
    cells = {row.section: plan.cells_of(row.section) for row in one.rows if row.section}
    assert least + sum(minutes(new_notebook(cells=its)) for its in cells.values()) / 2 <= one.minutes <= 90
    assert plan.table(one) in TEACHING, "python -m teaching.classroom.plan writes it"
    for row in one.rows:
        plan.asked_in(row)  # raises where the notebook asks otherwise, or does not offer the right answer
        for code, title in re.findall(r"`(.+?)`|figure “(.+?)”", "; ".join(row.stops)):
            assert any((code or title) in cell.source for cell in cells[row.section] if cell.cell_type == "code"), code
