"""What grading writes: a new folder for each run. Nothing that is there already is changed.

    class.html         for the teacher: the commonest mistakes, every student and exercise, what to look at
    grades.csv         a line per student, for a gradebook
    exercises.csv      a line per student and exercise: what the check saw, its hint, what the teacher may look at
    feedback/          a page per student, to be given back

Templates escape all text of students: no page runs anything; no cell of a table is a formula.
"""

import contextlib
import csv
import datetime
import io
import itertools
import os
import re
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader

from teaching.classroom.submissions import Answer, Assignment
from tools.course import one_line, write_beside

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
EXERCISES = ("student", "notebook", "exercise", "status", "seen", "hint", "seconds", "worth", "points", "look_at")
MARK = "\ufeff"  # at the start of a file it tells Excel: UTF-8
MAX_MISTAKES = 8  # mistakes on the page of the class


@dataclass
class Row:
    """The verdict on one exercise of one student."""

    student: str
    assignment: Assignment
    answer: Answer
    status: str = "not graded"
    seen: str = "The run was stopped before this exercise."
    hint: str = ""
    seconds: float = 0.0

    notebook = property(lambda self: self.assignment.notebook)
    exercise = property(lambda self: self.assignment.title)
    worth = property(lambda self: self.assignment.points)
    points = property(lambda self: self.worth * (self.status == "passed"))

    @property
    def look_at(self) -> str:
        """What the teacher may look at: means to deceive. Nothing follows from it."""
        means = ", ".join(self.answer.reaches[:8])
        return f"reaches for {means}: read it, since such code can change what its check says" if means else ""

    @property
    def number(self) -> tuple[str, str]:
        """("01", "3") for exercise 3 of notebook 01."""
        return self.notebook[:2], self.exercise.split(".")[0]

    def settle(self, status: str, seen: str, hint: str, seconds: float = 0.0) -> None:
        """Write the verdict down."""
        self.status, self.seen, self.hint, self.seconds = status, seen or STATUSES[status][2], hint, round(seconds, 1)


def totals(rows: list[Row]) -> tuple[float, float, int, int]:
    """(points, points possible, exercises that pass, exercises) of a student's rows."""
    passed = sum(row.status == "passed" for row in rows)
    return sum(row.points for row in rows), sum(row.worth for row in rows), passed, len(rows)


def number(value: float) -> str:
    """A number of points as short as it can be written."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def new_folder(submissions: Path) -> Path:
    """A new folder beside that of the submissions: FOLDER_graded, or FOLDER_graded_2 if that exists, and so on."""
    for count in itertools.count(1):
        folder = submissions.with_name(f"{submissions.name}_graded{f'_{count}' if count > 1 else ''}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder


def keep_rows(folder: Path, settled: list[Row]):
    """Begin exercises.csv, and return a function that adds a row at once: a run that is killed keeps what it graded."""
    path, lock = folder / "exercises.csv", threading.Lock()

    def lines(rows):
        return [[getattr(row, name) for name in EXERCISES] for row in rows]

    def keep(row):
        text = table(lines([row])).removeprefix(MARK)
        with contextlib.suppress(OSError), lock, open(path, "ab") as file:  # a full disk is said when all is written
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())

    write_beside(path, table([EXERCISES, *lines(settled)]))
    return keep


def write_results(folder: Path, graded: dict[str, list[Row]], found, isolated: bool) -> None:
    """Write all tables and pages into a new folder, of these rows {student: rows} and these Submissions."""
    rows = [row for own in graded.values() for row in own]
    cells = ([getattr(row, name) for name in EXERCISES] for row in rows)
    write_beside(folder / "exercises.csv", table([EXERCISES, *cells]))
    write_beside(folder / "grades.csv", gradebook(graded))
    write_beside(folder / "class.html", class_page(graded, found, isolated))
    (folder / "feedback").mkdir()
    for name, student in found.students.items():
        try:
            write_beside(folder / "feedback" / student.page, feedback(name, graded[name], student))
        except OSError as error:
            print(f"{one_line(name)} gets no page of feedback: {one_line(error)}")


def table(lines: list) -> str:
    """Lines as CSV; no text is taken for a formula, by spreadsheets that cut at ; either."""
    written = ([number(cell) if isinstance(cell, float) else str(cell) for cell in line] for line in lines)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([FORMULA.sub(r"\1'", cell) for cell in line] for line in written)
    return MARK + text.getvalue()


def gradebook(graded: dict[str, list[Row]]) -> str:
    """A line per student: points, passed, and the status of each exercise."""
    exercises = [" exercise ".join(row.number) for row in next(iter(graded.values()))]
    lines = [["student", "points", "points possible", "passed", "exercises", *exercises]]
    lines += [[name, *totals(rows), *(row.status for row in rows)] for name, rows in graded.items()]
    return table(lines)


def _printable(value):
    """Text of unknown origin in printable characters. What a template made itself is markup, and stays."""
    return "".join(one if one.isprintable() else " " for one in value[:900]) if type(value) is str else value


PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("pages")), autoescape=True, finalize=_printable, trim_blocks=True
)


def render(template: str, **parts) -> str:
    """A page; all text in its parts comes out escaped."""
    return PAGES.get_template(template).render(parts, statuses=STATUSES, number=number, totals=totals)


def class_page(graded: dict[str, list[Row]], found, isolated: bool) -> str:
    """The page for the teacher."""
    columns, rows = next(iter(graded.values())), [row for own in graded.values() for row in own]
    unread = [f"{name}: {one}" for name, own in found.students.items() for one in own.unread] + found.nobodys
    several, left = _mistakes(graded)
    pages = {name: quote(f"feedback/{own.page}", errors="surrogateescape") for name, own in found.students.items()}
    return render(
        "results_class.html", graded=graded, isolated=isolated, columns=columns, rows=rows, unread=unread, pages=pages,
        passed=[totals(column)[2] for column in zip(*graded.values(), strict=True)],
        several=several, left=left, numbers=", ".join(dict.fromkeys(row.number[0] for row in columns)),
        today=datetime.date.today(),
    )  # fmt: skip


def _mistakes(graded):
    """[((exercise, status, what the check says), who)] of what came up twice or more; how many mistakes are left."""
    who = defaultdict(list)
    for row in itertools.chain(*graded.values()):
        if STATUSES[row.status][1] == "bad":
            said = row.hint if row.status != "does not run" else re.sub(r" \(line.*", "", row.seen)
            said = said or row.seen.partition(" | ")[0]
            who[f"{row.notebook[:2]} exercise {row.exercise}", row.status, said].append(row.student)
    several = sorted((one for one in who.items() if len(one[1]) > 1), key=lambda one: -len(one[1]))[:MAX_MISTAKES]
    return several, len(who) - len(several)


def feedback(name: str, rows: list[Row], student) -> str:
    """A student's page: what was asked, what they wrote, what the check says to it."""
    notebooks = list(dict.fromkeys(row.notebook for row in rows))
    return render(
        "results_student.html", who=re.sub(r"_\d+$", "", name), rows=rows,
        numbers=" and ".join(notebook[:2] for notebook in notebooks), remarks=student.remarks(notebooks),
        unread=[Path(one).name for one in student.unread],
    )  # fmt: skip
