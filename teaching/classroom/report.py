"""What grading writes: the folder of the results.

    class.html         for the teacher: the commonest mistakes, every student and exercise, what to look at
    grades.csv         a line per student, for a gradebook
    exercises.csv      a line per student and exercise: what the check saw, its hint, what the teacher may look at
    worksheet.csv      with --worksheet: the platform's own file, filled
    feedback/          a page per student, to be given back
    overrides.csv      the teacher's own marks: made once, never written to again
    .graded.json       what checks said, saved as soon as it is said: the next run grades only the rest

A file of these that somebody has changed since is kept under a dated name; the folder is used only if it is new, empty
or of an earlier run. All text of students is escaped: no page runs anything, no cell of a table is a formula.
"""

import datetime
import hashlib
import html
import json
import os
import re
import threading
from collections import defaultdict
from itertools import groupby
from pathlib import Path
from string import Template
from urllib.parse import quote

from teaching.classroom.points import FIRST_LINE, OVERRIDES, Mark, Row, number, table_text
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
    "reason", "look_at",
)  # fmt: skip
LONGEST = 8  # mistakes on the page of the class
PAGE = Template(Path(__file__).with_name("pages").joinpath("results.html").read_text(encoding="utf-8"))


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
                raise ValueError(
                    f"{folder} has a damaged {MARKER}: move that folder away, and copy {OVERRIDES} back into a new one."
                ) from error
        elif folder.exists() and not (folder.is_dir() and all(map(_may_stay, folder.iterdir()))):
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

    def write(self, marks: dict[str, Mark], found, worksheet: str = "") -> None:
        """Write all pages and tables, of these marks {student: mark} and these Submissions."""
        self._save()  # what is stopped from here on goes on in this folder
        (self.folder / "feedback").mkdir(exist_ok=True)
        if not (self.folder / OVERRIDES).exists():
            write_beside(self.folder / OVERRIDES, FIRST_LINE)
        rows = [row for mark in marks.values() for row in mark.rows]
        self._write("class.html", class_page(marks, found))
        self._write("grades.csv", gradebook(marks))
        cells = ([getattr(row, name) for name in TABLE] for row in rows)
        self._write("exercises.csv", table([TABLE, *cells]))
        if worksheet:
            self._write("worksheet.csv", worksheet)
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


def _may_stay(path):
    """Whether a file may lie in a folder without results: what a kill left, and marks that somebody copied there."""
    return path.suffix == ".part" or path.name == OVERRIDES


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def table(lines: list) -> str:
    """Lines as CSV; no text is taken for a formula, by spreadsheets that cut at ; either."""
    written = ([number(cell) if isinstance(cell, float) else str(cell) for cell in line] for line in lines)
    return table_text([FORMULA.sub(r"\1'", cell) for cell in line] for line in written)


def gradebook(marks: dict[str, Mark]) -> str:
    """A line per student: points, passed, and the status of each exercise."""
    asked = [row.name for row in next(iter(marks.values())).rows]
    lines = [["student", "points", "points possible", "passed", "exercises", *asked]]
    for name, mark in marks.items():
        points = number(mark.points), number(mark.possible)
        lines.append([name, *points, *mark.passed(), *(row.status for row in mark.rows)])
    return table(lines)


def plain(text) -> str:
    """Text of unknown origin for a page."""
    return html.escape(one_line(text, 900))


def class_page(marks: dict[str, Mark], found) -> str:
    """The page for the teacher."""
    first = next(iter(marks.values()))
    columns, numbers = first.rows, ", ".join(dict.fromkeys(row.number[0] for row in first.rows))
    body = [f"<h1>{numbers}: {len(marks)} students</h1>"]
    how = "without isolation from the machine" if columns[0].isolation == "none" else "in isolation (bubblewrap)"
    body += [f"<p>Graded {how} on {datetime.date.today()}.</p>", "<h2>To talk about next lesson</h2>"]
    body += _mistakes(marks, found)
    body += _look_at(marks, found)
    body += ["<h2>Everybody, every exercise</h2>", '<div class="table"><table><thead><tr><th>student</th>']
    body.append(f"<th>points<br>of {number(first.possible)}</th><th>passed<br>of {len(columns)}</th>")
    for row in columns:
        sign = "<br>".join(row.number) + ("*" if row.worth else "")
        body.append(f'<th title="{plain(row.notebook)}, {plain(row.exercise)}">{sign}</th>')
    body.append('</tr></thead><tbody><tr><th scope="row">passed by</th><td></td><td></td>')
    for column in zip(*(mark.rows for mark in marks.values()), strict=True):
        body.append(f"<td>{sum(row.status == 'passed' for row in column)}</td>")
    for name, mark in marks.items():
        page, hand = _page(found, name), " ✎" if mark.by_hand is not None else ""
        body.append(f'</tr><tr><th scope="row" title="{plain(name)}">{_link(found, name)}</th>')
        body.append(f"<td>{number(mark.points)}{hand}</td><td>{mark.passed()[0]}</td>")
        for row in mark.rows:
            sign, colour, _ = STATUSES[row.status]
            sign += " ✎" if row.by_hand is not None else ""
            link = f'<a class="{colour}" href="{page}#e{"-".join(row.number)}" title="{row.status}">{sign}</a>'
            body.append(f"<td>{link}</td>")
    body.append("</tr></tbody></table></div>")
    rows = [row for mark in marks.values() for row in mark.rows]
    shown = {row.status for row in rows}
    legend = [f'<span class="{c}">{s}&nbsp;{name}</span>' for name, (s, c, _) in STATUSES.items() if name in shown]
    if any(one.by_hand is not None for one in [*rows, *marks.values()]):
        legend.append("✎&nbsp;points set by hand (overrides.csv)")
    body.append(f"<p>{' &ensp; '.join(legend)} &ensp; * gives points (docs/teaching.md, Assessment)</p>")
    unread = [f"{name}: {one}" for name, own in found.students.items() for one in own.unread] + found.nobodys
    if unread:
        body.append(f"<h2>Not understood, not graded: {len(unread)}</h2><ul>")
        body += [f"<li>{plain(one)}</li>" for one in unread] + ["</ul>"]
    return PAGE.substitute(title="The class", width="90rem", body="\n".join(body))


def _mistakes(marks, found):
    """What came up, most often first: the exercise, what the check says, and for whom."""
    who = defaultdict(list)
    for name, mark in marks.items():
        for row in mark.rows:
            if STATUSES[row.status][1] == "bad":
                said = row.hint if row.status != "does not run" else re.sub(r" \(line.*", "", row.seen)
                said = said or row.seen.partition(" | ")[0]
                who[row.notebook[:2], row.exercise, row.status, said].append(name)
    several = sorted((one for one in who.items() if len(one[1]) > 1), key=lambda one: -len(one[1]))
    if not several:  # one student's mistake is not the class's
        yield "<p>No mistake came up twice.</p>" if who else "<p>No exercise went wrong.</p>"
        return
    yield "<ol>"
    for (notebook, exercise, status, said), names in several[:LONGEST]:
        links = ", ".join(_link(found, name) for name in names)
        yield f"<li><b>{len(names)} of {len(marks)}</b>, {notebook} exercise {plain(exercise)}, {status}: "
        yield f"<q>{plain(said)}</q>"
        yield f"<br>{links}</li>" if len(names) <= 10 else f"<details><summary>who</summary>{links}</details></li>"
    yield "</ol>"
    if left := len(who) - len(several[:LONGEST]):
        yield f"<p>And {left} that came up less often: see exercises.csv.</p>"


def _look_at(marks, found):
    """What the teacher may look at."""
    if rows := [row for mark in marks.values() for row in mark.rows if row.look_at]:
        yield "<h2>To look at yourself</h2>"
        yield "<p>Nothing follows from these by itself.</p><ul>"
        for row in rows:
            yield f"<li>{_link(found, row.student)}, {plain(row.name)}: {plain(row.look_at)}</li>"
        yield "</ul>"


def _page(found, name):
    """Where a student's page is, from the page of the class."""
    return quote(f"feedback/{found.students[name].page}", errors="surrogateescape")


def _link(found, name):
    return f'<a href="{_page(found, name)}">{plain(name)}</a>'


def feedback(name: str, mark: Mark, student) -> str:
    """A student's page: what was asked, what they wrote, what the check says to it."""
    rows = [row for row in mark.rows if row.asked or row.by_hand is not None]
    passed, exercises = mark.passed(asked=True)
    notebooks = list(dict.fromkeys(row.notebook for row in rows))
    who = plain(re.sub(r"_\d+$", "", name))
    numbers = " and ".join(plain(notebook[:2]) for notebook in notebooks)
    body = [f"<h1>{who}: notebook {numbers}</h1>"]
    body.append(f"<p>{passed} of the {exercises} exercises that were asked for passed.</p>")
    if mark.possible:
        body.append(f"<p>{number(mark.points)} of {number(mark.possible)} points.</p>")
    if mark.by_hand is not None:
        body.append(f"<p>The points were {_by_hand(mark)}</p>")
    body += [f"<p>{plain(said)}</p>" for said in student.remarks(notebooks)]
    for notebook, own in groupby(rows, lambda row: row.notebook):
        body.append(f"<h2>{plain(notebook)}</h2>")
        for row in own:
            body += _exercise(row)
    if student.unread:
        body += ["<h2>Files that were not graded</h2>", "<ul>"]
        body += [f"<li>{plain(Path(one).name)}</li>" for one in student.unread] + ["</ul>"]
    return PAGE.substitute(title=f"{who}: notebook {numbers}", width="45rem", body="\n".join(body))


def _by_hand(mark):
    return f"set by hand: {plain(mark.reason) or 'your teacher gave no reason here.'}"


def _exercise(row):
    sign, colour, _ = STATUSES[row.status]
    yield f'<h3 id="e{"-".join(row.number)}">{plain(row.exercise)}</h3>'
    yield f'<p class="{colour}">{sign} {row.status}</p>'
    if row.by_hand is not None:
        yield f"<p>{number(row.by_hand)} of {number(row.worth)} points, {_by_hand(row)}</p>"
    lines = "\n".join(plain(line) for line in row.seen.split(" | "))  # numbers in lines of their own
    yield f'<p class="seen">{lines}</p>'
    if row.hint:
        yield f"<p>Hint: {plain(row.hint)}</p>"
    if row.answer.own:
        where = "" if row.answer.cell == "[ ]" else f"the cell {plain(row.answer.cell)} of "
        arrow = "; the arrow shows the line" if row.answer.line else ""
        yield f"<p>You wrote, in {where}the notebook that you handed in{arrow}:</p>"
        shown = [html.escape("".join(one if one.isprintable() else " " for one in line))
                 for line in row.answer.own.expandtabs(4).split("\n")]  # fmt: skip
        if row.answer.line:
            shown[row.answer.line - 1] = f"<b>→ {shown[row.answer.line - 1]}</b>"
        yield f'<p class="seen own">{chr(10).join(shown)}</p>'
