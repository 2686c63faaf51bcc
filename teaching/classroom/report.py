"""What grading writes: the folder of the results.

    class.html         for the teacher: the commonest mistakes, every student and exercise, what to look at
    grades.csv         a line per student, for a gradebook
    exercises.csv      a line per student and exercise: what the check saw, its hint, what the teacher may look at
    feedback/          a page per student, to be given back
    .graded.json       what checks said, saved as soon as it is said: the next run grades only the rest

A file of these that somebody has changed since is kept under a dated name; the folder is used only if it is new, empty
or of an earlier run. Templates escape all text of students: no page runs anything; no cell of a table is a formula.
"""

import csv
import datetime
import hashlib
import io
import json
import os
import re
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader

from teaching.classroom.submissions import Answer, Assignment
from tools.course import new_file, one_line, write_beside

STATUSES = {  # status: its sign, its colour, its meaning
    "passed": ("✓", "good", "The check passed."),
    "not yet": ("✗", "bad", "The check found a case that fails."),
    "not attempted": ("·", "none", "The function is as it was handed out, or still empty."),
    "no such function": ("?", "bad", "The notebook does not define the function."),
    "does not run": ("!", "bad", "The code stops before the check."),
    "timed out": ("∞", "bad", "There was no answer in time."),
    "crashed": ("†", "bad", "The program ended Python."),
    "missing notebook": ("–", "none", "The notebook was not handed in."),
    "broken notebook": ("#", "bad", "The file cannot be read as a notebook."),
    "not graded": ("∅", "odd", "The grader itself failed or was stopped. This says nothing about the answer."),
}
FORMULA = re.compile(r'((?:^|[;\t\r\n])[\s"]*)(?=[=+\-@＝＋－＠])')  # where a spreadsheet may see a cell begin
KEPT = ("passed", "not yet", "not attempted")  # what a check says; all else may be the machine's fault, and runs again
MARKER = ".graded.json"
TABLE = (  # of exercises.csv
    "student", "notebook", "exercise", "status", "seen", "hint", "seconds", "isolation", "worth", "points", "asked",
    "look_at",
)  # fmt: skip
LONGEST = 8  # mistakes on the page of the class


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

    notebook = property(lambda self: self.assignment.notebook)
    exercise = property(lambda self: self.assignment.title)
    worth = property(lambda self: self.assignment.points)
    asked = property(lambda self: self.assignment.asked)

    @property
    def look_at(self) -> str:
        """What the teacher may look at: means to deceive. Nothing follows from it."""
        means = ", ".join(self.answer.reaches[:8])
        return f"reaches for {means}: read it, since such code can change what its check says" if means else ""

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
        """What counts."""
        return self.worth * (self.status == "passed")


@dataclass
class Mark:
    """All rows of a student."""

    rows: list[Row]

    @property
    def points(self) -> float:
        """What counts."""
        return round(sum(row.points for row in self.rows), 2)

    @property
    def possible(self) -> float:
        """Points that can be had."""
        return sum(row.worth for row in self.rows)

    def passed(self, asked: bool = False) -> tuple[int, int]:
        """(exercises that pass, exercises); of those that were asked for, or all."""
        rows = [row for row in self.rows if row.asked or not asked]
        return sum(row.status == "passed" for row in rows), len(rows)

    def shown(self) -> list[Row]:
        """What the student is told about: what was asked for."""
        return [row for row in self.rows if row.asked]


def number(value: float) -> str:
    """A number of points as short as it can be written."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


class Results:
    """The folder of the results.

    Raises:
        ValueError: if it is no folder, or holds other things than results, or damaged ones.
    """

    def __init__(self, folder: Path):
        self.folder, self.verdicts, self._written = folder, {}, {}
        self._one_writes, marker = threading.Lock(), folder / MARKER
        if marker.is_file():
            try:
                kept = json.loads(marker.read_text(encoding="utf-8"))
                self.verdicts, self._written = kept["verdicts"], kept["written"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{folder} has a damaged {MARKER}: move that folder away.") from error
        elif folder.exists() and not (folder.is_dir() and all(name.endswith(".part") for name in os.listdir(folder))):
            raise ValueError(f"{folder} holds other things than results: the results go there, so move it away.")

    def recall(self, key: str, row: Row) -> bool:
        """Settle a row as in an earlier run, if there was one."""
        if key in self.verdicts:
            settle(row, *self.verdicts[key])
        return key in self.verdicts

    def remember(self, key: str, row: Row) -> None:
        """Keep a verdict for later runs, if it is a check's: on disk, so that no end of the grader loses it."""
        if row.status in KEPT:
            with self._one_writes:
                self.verdicts[key] = [row.status, row.seen, row.hint, row.seconds]
                self._save()

    def write(self, marks: dict[str, Mark], found) -> None:
        """Write all pages and tables, of these marks {student: mark} and these Submissions."""
        self._save()  # what is stopped from here on goes on in this folder
        (self.folder / "feedback").mkdir(exist_ok=True)
        rows = [row for mark in marks.values() for row in mark.rows]
        self._write("class.html", class_page(marks, found))
        self._write("grades.csv", gradebook(marks))
        cells = ([getattr(row, name) for name in TABLE] for row in rows)
        self._write("exercises.csv", table([TABLE, *cells]))
        for name, student in found.students.items():
            try:
                self._write(f"feedback/{student.page}", feedback(name, marks[name], student))
            except OSError as error:
                print(f"{one_line(name)} gets no page of feedback: {one_line(error)}")
        self._save()

    def _save(self):
        self.folder.mkdir(exist_ok=True)
        kept = {"verdicts": self.verdicts, "written": self._written}
        write_beside(self.folder / MARKER, json.dumps(kept, indent=0))

    def _write(self, name, text):
        """Write a file. One that is not as we wrote it is somebody's, and gets a dated name first."""
        path = self.folder / name
        if path.exists() and _digest(path) != self._written.get(name):
            kept = new_file(path)
            os.replace(path, kept)
            print(f"{one_line(name)} was changed since the last run: it is kept as {one_line(kept.name)}.")
        write_beside(path, text)
        self._written[name] = _digest(path)


def settle(row: Row, status: str, seen: str, hint: str, seconds: float = 0.0) -> None:
    """Write a verdict down."""
    row.status, row.seen, row.hint, row.seconds = status, seen or STATUSES[status][2], hint, round(seconds, 1)


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def table(lines: list) -> str:
    """Lines as CSV; no text is taken for a formula, by spreadsheets that cut at ; either."""
    written = ([number(cell) if isinstance(cell, float) else str(cell) for cell in line] for line in lines)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([FORMULA.sub(r"\1'", cell) for cell in line] for line in written)
    return "\ufeff" + text.getvalue()  # this mark tells Excel: UTF-8


def gradebook(marks: dict[str, Mark]) -> str:
    """A line per student: points, passed, and the status of each exercise."""
    asked = [row.name for row in next(iter(marks.values())).rows]
    lines = [["student", "points", "points possible", "passed", "exercises", *asked]]
    for name, mark in marks.items():
        points = number(mark.points), number(mark.possible)
        lines.append([name, *points, *mark.passed(), *(row.status for row in mark.rows)])
    return table(lines)


def _printable(value):
    """Text of unknown origin in printable characters. What a template made itself is markup, and stays."""
    return "".join(one if one.isprintable() else " " for one in value[:900]) if type(value) is str else value


PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("pages")), autoescape=True, finalize=_printable, trim_blocks=True
)


def render(template: str, **parts) -> str:
    """A page; all text in its parts comes out escaped."""
    return PAGES.get_template(template).render(parts, statuses=STATUSES, number=number)


def class_page(marks: dict[str, Mark], found) -> str:
    """The page for the teacher."""
    columns, rows = next(iter(marks.values())).rows, [row for mark in marks.values() for row in mark.rows]
    unread = [f"{name}: {one}" for name, own in found.students.items() for one in own.unread] + found.nobodys
    several, left = _mistakes(marks)
    pages = {name: quote(f"feedback/{own.page}", errors="surrogateescape") for name, own in found.students.items()}
    by_exercise = zip(*(mark.rows for mark in marks.values()), strict=True)
    return render(
        "results_class.html", marks=marks, columns=columns, rows=rows, unread=unread, pages=pages,
        passed=[sum(row.status == "passed" for row in column) for column in by_exercise],
        several=several, left=left, numbers=", ".join(dict.fromkeys(row.number[0] for row in columns)),
        today=datetime.date.today(),
    )  # fmt: skip


def _mistakes(marks):
    """[((exercise, status, what the check says), who)] of what came up twice or more; how many mistakes are left."""
    who = defaultdict(list)
    for name, mark in marks.items():
        for row in mark.rows:
            if STATUSES[row.status][1] == "bad":
                said = row.hint if row.status != "does not run" else re.sub(r" \(line.*", "", row.seen)
                said = said or row.seen.partition(" | ")[0]
                who[f"{row.notebook[:2]} exercise {row.exercise}", row.status, said].append(name)
    several = sorted((one for one in who.items() if len(one[1]) > 1), key=lambda one: -len(one[1]))[:LONGEST]
    return several, len(who) - len(several)


def feedback(name: str, mark: Mark, student) -> str:
    """A student's page: what was asked, what they wrote, what the check says to it."""
    notebooks = list(dict.fromkeys(row.notebook for row in mark.shown()))
    return render(
        "results_student.html", who=re.sub(r"_\d+$", "", name), mark=mark,
        numbers=" and ".join(notebook[:2] for notebook in notebooks), remarks=student.remarks(notebooks),
        unread=[Path(one).name for one in student.unread],
    )  # fmt: skip
