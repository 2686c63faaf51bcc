"""The plan of the classes: the tables of docs/teaching.md, read, and what they name in the notebooks.

A row of a class is a section, an exercise, a question on paper, or something else. A question in “quotes” is the
notebook's own; its options and its answer stand in the metadata of the cell that asks it, as `questions`:
`{"ask": …, "options": […], "answer": 2}` (counted from 1), `{"ask": …, "answer": 3.0}` for a number, and
`{"ask": …, "answer": "…"}` for what is said in words.
"""

import functools
import re
from dataclasses import dataclass

import nbformat

from tools.course import ROOT, notebooks_of

PAGE = ROOT / "docs" / "teaching.md"


@dataclass(frozen=True)
class Question:
    """What a notebook asks at a stop, in Markdown."""

    text: str
    vote: bool = False
    answer: str | float = ""  # one of the options, or a number, or words

    @property
    def right(self) -> str:
        """The answer as it is said."""
        return self.answer if isinstance(self.answer, str) else f"{self.answer:,g}"


@dataclass(frozen=True)
class Row:
    """A stretch of a class."""

    minutes: int
    section: str  # "1.3", or ""
    stops: list[str]  # first words of cells, titles of figures
    ask: list[Question]
    exercise: str  # "01.1": notebook 01, exercise 1; or ""
    question: str  # the same, of *Check yourself*


@dataclass(frozen=True)
class Class:
    """One class."""

    number: str  # "0" to "9"
    name: str  # "Class 3: Gates"
    about: str
    table: str  # its two tables as the page has them
    rows: list[Row]
    homework: list[str]  # as `make grade` has it behind --only: "01.2" is exercise 2 of notebook 01, "00" all of it

    @property
    def minutes(self) -> int:
        """Of all rows [min]."""
        return sum(row.minutes for row in self.rows)

    @property
    def notebooks(self) -> list[str]:
        """Numbers of the notebooks that it opens, in order: what is handed out for it."""
        return sorted({f"0{row.section[0]}" for row in self.rows if row.section})


def read_plan() -> list[Class]:
    """The classes of docs/teaching.md.

    Raises:
        ValueError: a row names a section, an exercise or a question that no notebook has.
    """
    text, found = PAGE.read_text(encoding="utf-8"), []
    homework = {cells[0][1]: exercises_named(cells[-1]) for cells in _lines(text) if re.match(r"\[\d\]", cells[0])}
    for part in re.split(r"^### (?=Class \d)", text, flags=re.M)[1:]:
        name, _, rest = re.split(r"^##", part, maxsplit=1, flags=re.M)[0].partition("\n")
        about, bar, tables = rest.strip().partition("\n\n|")
        rows = [_row(*cells) for cells in _lines(bar + tables) if re.fullmatch(r"\d+–\d+", cells[0])]
        found.append(Class(name[6], name, about, f"|{tables}\n", rows, homework[name[6]]))
    return found


def _lines(text):
    # The lines of all tables, as lists of cells.
    return [[cell.strip() for cell in line.split(" | ")] for line in re.findall(r"^\| (.*) \|$", text, re.M)]


def _row(minutes, section, stops, words):
    start, end = map(int, minutes.split("–"))
    asked = re.findall(r"(\*\*Vote:\*\* )?“(.+?)”", words) if section else []
    exercise = "".join(exercises_named(stops))
    question = next(map(".".join, re.findall(r"(0\d) question (\d)", stops)), "")
    stops = [a or b for a, b in re.findall(r"`(.+?)`|“(.+?)”", stops)]
    asked = [_asked(section, text, bool(vote)) for vote, text in asked]
    return Row(end - start, section, stops, asked, exercise, question)


def exercises_named(text: str) -> list[str]:
    """ "01.2" and "01.3" for "01 exercises 2 and 3"; "00" for "00, run to its last cell"."""
    found = re.findall(r"\b(0\d), run to its last cell", text)
    for number, rest in re.findall(r"\b(0\d)(?: \|)? exercises? (\d(?:(?:, | and | to )\d\b)*)(?! begun)", text):
        named = [int(n) for n in re.findall(r"\d", rest)]
        found += [f"{number}.{n}" for n in (range(named[0], named[-1] + 1) if " to " in rest else named)]
    return found


def _asked(section, text, vote):
    # A question with its answer.
    for cell in cells_of(section):
        for data in cell.metadata.get("questions", []):
            if data["ask"] == text:
                answer = data["answer"]
                return Question(text, vote, data["options"][answer - 1] if "options" in data else answer)
    raise ValueError(f"section {section} has no question {text!r} in the metadata of its cells.")


@functools.cache
def _cells(number):
    return nbformat.read(notebooks_of(ROOT / "notebooks", [number])[0], as_version=4).cells


def _between(what, number, start, end):
    # The cells of notebook `number` from the one that matches `start` up to the next that matches `end`.
    found = []
    for cell in _cells(number):
        text = cell.source if cell.cell_type == "markdown" else ""
        if found and re.match(end, text):
            break
        if found or re.match(start, text):
            found.append(cell)
    if not found:
        raise ValueError(f"the plan names {what} of notebook {number}, which has none: correct docs/teaching.md.")
    return found


def cells_of(name: str) -> list:
    """The cells of section "1.3"."""
    return _between(f"section {name}", f"0{name[0]}", rf"## {re.escape(name)} ", "## ")


def exercise(name: str) -> str:
    """The text of an exercise, "01.2", in Markdown."""
    number, n = name.split(".")
    return _between(f"exercise {n}", number, rf"### Exercise {n}\b", "##")[0].source


def question(name: str) -> str:
    """A question of *Check yourself*, "01.3", in Markdown."""
    number, n = name.split(".")
    source = _between(f"question {n}", number, "## Check yourself", "## ")[0].source
    return re.search(rf"^{n}\. (.*(?:\n+ +.*)*)", source, re.M)[1]
