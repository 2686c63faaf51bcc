"""What an exercise earned: points, what the teacher sets by hand in `overrides.csv` (docs/teaching.md, 4. Look)."""

import csv
import io
import math
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from teaching.classroom.submissions import Answer, Assignment
from tools.course import one_line

OVERRIDES = "overrides.csv"
FIRST_LINE = "\ufeffstudent,exercise,points,reason\n"  # the mark tells Excel: UTF-8


@dataclass
class Row:
    """The verdict on one exercise of one student."""

    student: str
    assignment: Assignment
    answer: Answer
    isolation: str
    status: str = "not graded"
    seen: str = "The run was stopped before this exercise."
    hint: str = ""
    seconds: float = 0.0
    by_hand: float | None = None  # points that the teacher gave
    reason: str = ""  # and why

    notebook = property(lambda self: self.assignment.notebook)
    exercise = property(lambda self: self.assignment.title)
    worth = property(lambda self: self.assignment.points)
    asked = property(lambda self: self.assignment.asked)

    @property
    def look_at(self) -> str:
        """What the teacher may look at: means to deceive, beyond the published solution's. Nothing follows from it."""
        means = [one for one in self.answer.reaches if one not in self.assignment.reaches]
        said = f"reaches for {', '.join(means[:8])}: read it, since such code can change what its check says"
        return said if means else ""

    @property
    def number(self) -> tuple[str, str]:
        """("01", "3") for exercise 3 of notebook 01."""
        return self.notebook[:2], self.exercise.split(".")[0]

    @property
    def name(self) -> str:
        """ "01 exercise 3", as in the tables."""
        return " exercise ".join(self.number)

    @property
    def points(self) -> float:
        """What counts: the teacher's mark, or that of the check."""
        return self.worth * (self.status == "passed") if self.by_hand is None else self.by_hand


@dataclass
class Mark:
    """All rows of a student."""

    rows: list[Row]
    by_hand: float | None = None  # all points, as the teacher set them
    reason: str = ""

    @property
    def points(self) -> float:
        """What counts."""
        return round(sum(row.points for row in self.rows), 2) if self.by_hand is None else self.by_hand

    @property
    def possible(self) -> float:
        """Points that can be had."""
        return sum(row.worth for row in self.rows)

    def passed(self, asked: bool = False) -> tuple[int, int]:
        """(exercises that pass, exercises); of those that were asked for, or all."""
        rows = [row for row in self.rows if row.asked or not asked]
        return sum(row.status == "passed" for row in rows), len(rows)

    def shown(self) -> list[Row]:
        """What the student is told about: what was asked for, or has a mark by hand."""
        return [row for row in self.rows if row.asked or row.by_hand is not None]


def as_number(text: str) -> float:
    """The number that a cell of a table holds; NaN, which no comparison holds for, if it holds none."""
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return math.nan


def number(value: float) -> str:
    """A number of points as short as it can be written."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def read_table(path: Path) -> tuple[list[list[str]], str]:
    """(the lines of a CSV file, the mark between its cells), as Moodle and Excel write it.

    Raises:
        ValueError: if it cannot be read, is empty, or its first line has one cell only.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be opened: {error.strerror}.") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")  # Excel, in half of Europe
    first = text.strip().partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    lines = [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if any(line)]
    if not lines or len(lines[0]) < 2:
        raise ValueError(f"{path} is no table: its first line is {one_line(first, 60)!r}. Give the file as it came.")
    return lines, delimiter


def table_text(lines, delimiter: str = ",", end: str = "\n") -> str:
    """Lines as a CSV file; the mark at its beginning tells Excel: UTF-8."""
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator=end).writerows(lines)
    return "\ufeff" + text.getvalue()


def same(name: str) -> str:
    """A name as it is compared: no capitals, no double spaces, letters and their accents in one."""
    return " ".join(unicodedata.normalize("NFC", name).casefold().split())


def apply_overrides(path: Path, marks: dict[str, Mark], course: dict) -> list[str]:
    """Put the teacher's own marks in; what is not about the notebooks of this run is said.

    Raises:
        ValueError: for a line that cannot be meant: an unknown student or exercise, points that are no number.
    """
    if not path.exists():
        return []
    students, said, mistakes, known = {same(name): name for name in marks}, [], [], ""
    for cells in read_table(path)[0][1:]:
        who, what, points, reason = [cell.strip() for cell in [*cells, "", "", "", ""][:4]]
        begins = [name for one, name in students.items() if who and one.startswith(same(who))]
        begins = [students[same(who)]] if same(who) in students else begins
        given, found = as_number(points), re.fullmatch(r"(\d\d)\w*\W*(?:exercise)?\W*(\d+)", what)
        if len(begins) != 1:
            known = " Who handed in nothing needs an empty folder of that name. Known here: "
            known += f"{', '.join(one_line(name, 60) for name in marks)}."
            mistakes.append(f"{who}, {what}: {len(begins)} students have a name that begins with {who!r}")
        elif not 0 <= given < math.inf:
            mistakes.append(f"{who}, {what}: points are {points!r}; 0 or more is expected, such as 1 or 0.5")
        elif what.casefold() == "total":
            marks[begins[0]].by_hand, marks[begins[0]].reason = given, reason
        elif not found:
            mistakes.append(f"{who}, {what}: {what!r} is neither 'total' nor like '01 exercise 2'")
        elif not any(notebook.startswith(found[1]) for notebook in course):
            said.append(f"{OVERRIDES}, {who}: {what} is not graded this time, and does not count.")
        elif row := next((row for row in marks[begins[0]].rows if row.number == found.groups()), None):
            row.by_hand, row.reason = given, reason
        else:
            mistakes.append(f"{who}, {what}: there is no {what} here")
    if mistakes:
        few = "; ".join(map(one_line, mistakes[:5]))
        raise ValueError(f"{path}: {few} ({len(mistakes)} to mend). Nothing was graded.{known}")
    return said
