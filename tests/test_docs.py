"""The pages for people: links resolve, the teacher's plan names what is there, the glossary is in order and true."""

import json
import re
from urllib.parse import unquote

import pytest
from nbformat.v4 import new_notebook

from checks.verdict import TAUGHT
from tests.support.course import ROOT, pages
from tools.classroom import plan
from tools.classroom.submissions import read_course
from tools.reading import minutes

NOTEBOOKS = {path.name[:2]: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
TEACHING = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
NAMED = {"start": "start", "exercises": "Exercises", "end": "Where this lives"}  # sections without a number


def sections_of(path):
    """The cells of a notebook by section: {"1.3" or a heading: [(kind, source), ...]}; "start" is before the first."""
    sections, current = {"start": []}, "start"
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        heading = re.match(r"## (?:(\d\.\d+) |(.*))", source) if cell["cell_type"] == "markdown" else None
        if heading:
            current = heading[1] or heading[2].strip()
        sections.setdefault(current, []).append((cell["cell_type"], source))
    return sections


SECTIONS = {number: sections_of(path) for number, path in NOTEBOOKS.items()}
NUMBERED = {name for sections in SECTIONS.values() for name in sections if re.match(r"\d\.", name)}


def text_of(path):
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    return "\n".join(text for cells in SECTIONS[path.name[:2]].values() for kind, text in cells if kind == "markdown")


def slug(heading):
    """The anchor that GitHub and MyST give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors_of(path):
    """Of a page as GitHub makes them, of a notebook as JupyterLab does: the heading with hyphens for spaces."""
    headings = re.findall(r"^#+ (.*)$", text_of(path), re.M)
    return {heading.strip().replace(" ", "-") if path.suffix == ".ipynb" else slug(heading) for heading in headings}


def links_of(path):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", text_of(path), flags=re.M | re.S)
    return [a or b for a, b in re.findall(r"\]\(([^)\s]+)\)|href=[\"']([^\"']+)", text)]


@pytest.mark.parametrize("path", [*pages(), *NOTEBOOKS.values()], ids=lambda path: path.name)
def test_internal_links_lead_to_a_file_and_to_a_heading_that_are_there(path):
    for link in links_of(path):
        if re.match(r"[a-z]+:", link):  # to another site: not ours to check
            continue
        file, _, anchor = unquote(link).partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        assert not anchor or target.suffix not in (".md", ".ipynb") or anchor in anchors_of(target), link


PLAN = plan.read_plan()


def exercises_named(text):
    """(notebook, exercise) pairs of "01 exercise 2", "02 | exercises 2, 3 and 4", "07 exercises 1 to 3"."""
    for number, rest in re.findall(r"\b(0\d)(?: \|)? exercises? (\d(?:(?:, | and | to )\d\b)*)", text):
        named = [int(n) for n in re.findall(r"\d", rest)]
        yield from ((number, n) for n in (range(named[0], named[-1] + 1) if " to " in rest else named))


def test_every_section_exercise_and_question_that_the_plan_names_exists():
    named = set(re.findall(r"\b\d\.\d+\b", re.sub(r"`[^`]+`|“[^”]+”|\b3\.1[123]\b", "", TEACHING)))  # 3.1x: Python
    assert named - NUMBERED == set() < named
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
    assert plan.table(one) in TEACHING, "python -m tools.classroom.plan writes it"
    for row in one.rows:
        plan.asked_in(row)  # raises where the notebook asks otherwise, or does not offer the right answer
        for code, title in re.findall(r"`(.+?)`|figure “(.+?)”", "; ".join(row.stops)):
            assert any((code or title) in cell.source for cell in cells[row.section] if cell.cell_type == "code"), code


def test_sections_that_errors_and_verdicts_name_are_there():
    sources = [path for room in ("helpers", "checks", "tools") for path in (ROOT / room).rglob("*.py")]
    said = "".join(path.read_text(encoding="utf-8") for path in sources)
    named = {section for _, section in re.findall(r"notebook (\d\d), section ([\d.]*\d)", said)}
    assert (named | set(TAUGHT.values())) - NUMBERED == set() < named


ENTRY = r"^- \*\*(.+?)\*\*(.*?): (.+?) \[(0\d), ([^\]]+)\]\(\.\./notebooks/([^)]+)\)$"
ENTRIES = re.findall(ENTRY, re.sub(r"\n {2}", " ", GLOSSARY), re.M)


def words_of(text):
    """Text without signs of markup, so that "**gated** layer" and "gated layer" are one."""
    return re.sub(r"[\s*`_\-–]+", " ", text.casefold())


def test_a_term_is_in_the_section_that_its_entry_names():
    assert len(ENTRIES) == GLOSSARY.count("\n- ") > 120
    texts = {
        f"{number}, {name}": words_of(" ".join(source for _, source in cells))
        for number, sections in SECTIONS.items()
        for name, cells in sections.items()
    }
    for term, _, _, number, section, file in ENTRIES:
        assert NOTEBOOKS[number].name == file, term
        holds = [place for place, text in texts.items() if re.search(rf"\b{re.escape(words_of(term))}", text)]
        if f"{number}, {NAMED.get(section, section)}" not in holds:
            pytest.fail(f"{term} is not in {number}, {section}; it is in {' · '.join(holds[:5]) or 'no section'}")
