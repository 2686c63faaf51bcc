"""What grading writes: the folder of the results.

    class.html         for the teacher: the commonest mistakes, then every student and exercise
    grades.csv         a line per student, for a gradebook
    exercises.csv      a line per student and exercise: what the check saw, and its hint
    feedback/          a page per student, to be given back
    .graded.json       what checks said, saved as soon as it is said: the next run grades only the rest

A file of these that somebody has changed since is kept under a dated name; the folder is used only if it is new, empty
or of an earlier run. All text of students is escaped: no page runs anything, no cell of a table is a formula.
"""

import csv
import datetime
import hashlib
import html
import io
import json
import os
import re
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

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
LONGEST = 8  # mistakes on the page of the class
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title><style>
:root {{ color-scheme: light dark; --good: light-dark(#1a7f37, #57c878); --bad: light-dark(#b3261e, #ff8a80);
  --odd: light-dark(#8a5a00, #f0b429); --none: light-dark(#6b6b6b, #a0a0a0); --line: light-dark(#ddd, #444);
  --back: light-dark(#fff, #181818); --soft: light-dark(#f4f4f4, #262626) }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: {width}; margin: 1.5rem auto; padding: 0 1rem;
  background: var(--back); overflow-wrap: anywhere }}
h1 {{ font-size: 1.5rem }} h2 {{ font-size: 1.2rem; margin-top: 2rem }} h3 {{ font-size: 1rem; margin: 1.2rem 0 0 }}
p {{ margin: .3rem 0 }} li {{ margin: .6rem 0 }} a {{ color: inherit }}
.good {{ color: var(--good) }} .bad {{ color: var(--bad) }} .odd {{ color: var(--odd) }} .none {{ color: var(--none) }}
.seen {{ white-space: pre-wrap; background: var(--soft); padding: .4rem .6rem; font-size: .9rem }}
.table {{ overflow: auto; max-height: 85vh; max-width: max-content; border: 1px solid var(--line) }}
table {{ border-collapse: separate; border-spacing: 0; overflow-wrap: normal }}
th, td {{ padding: .15rem .5rem; text-align: center; border-bottom: 1px solid var(--line); white-space: nowrap }}
thead th {{ position: sticky; top: 0; background: var(--soft); z-index: 1 }}
thead tr + tr th {{ top: 1.85rem }}
th:first-child {{ text-align: left }}
tbody th, thead tr:first-child th:first-child {{ position: sticky; left: 0; background: var(--back); max-width: 16rem;
  overflow: hidden; text-overflow: ellipsis; font-weight: normal }}
thead tr:first-child th:first-child {{ z-index: 2; background: var(--soft) }}
td a {{ text-decoration: none; display: block }} .first {{ border-left: 1px solid var(--line) }}
@media (max-width: 30rem) {{ tbody th {{ max-width: 6rem }} th, td {{ padding: .15rem .35rem }} }}
</style></head><body>
{body}
</body></html>
"""


@dataclass
class Row:
    """The verdict on one exercise of one student."""

    student: str
    notebook: str
    exercise: str
    status: str = "not graded"
    seen: str = "The run was stopped before this exercise."
    hint: str = ""
    seconds: float = 0.0
    isolation: str = "none"
    worth: int = 0  # points, if it passes

    def settle(self, status, seen, hint, seconds=0.0):
        """Write down a verdict."""
        self.status, self.seen, self.hint, self.seconds = status, seen or STATUSES[status][2], hint, round(seconds, 1)

    @property
    def number(self) -> tuple[str, str]:
        """("01", "3") for exercise 3 of notebook 01."""
        return self.notebook[:2], self.exercise.split(".")[0]


class Results:
    """The folder of the results."""

    def __init__(self, folder: Path):
        self.folder, self.verdicts, self._written = folder, {}, {}
        self._one_writes = threading.Lock()
        marker = folder / MARKER
        if marker.exists():
            kept = json.loads(marker.read_text(encoding="utf-8"))
            self.verdicts, self._written = kept["verdicts"], kept["written"]

    @staticmethod
    def why_not(folder: Path) -> str:
        """What speaks against writing results there; empty if nothing does."""
        if not folder.absolute().parent.is_dir():
            return "lies in a folder that is not there"
        if folder.exists() and not folder.is_dir():
            return "is there already, and no folder"
        others = [path for path in folder.iterdir() if path.suffix != ".part"] if folder.exists() else []  # of a kill
        if others and not (folder / MARKER).is_file():
            return "holds other things than results"
        try:
            Results(folder)
        except (OSError, ValueError, KeyError, TypeError):
            return f"has a damaged {MARKER}"
        return ""

    def recall(self, key: str, row: Row) -> bool:
        """Settle a row as in an earlier run, if there was one."""
        if key in self.verdicts:
            row.settle(*self.verdicts[key])
        return key in self.verdicts

    def remember(self, key: str, row: Row) -> None:
        """Keep a verdict for later runs, if it is a check's: on disk, so that no end of the grader loses it."""
        if row.status in KEPT:
            with self._one_writes:
                self.verdicts[key] = [row.status, row.seen, row.hint, row.seconds]
                self._save()

    def write(self, rows: list[Row], found) -> None:
        """Write all pages and tables.

        Args:
            found: what was handed in, as tools.classroom.handed_in.find_submissions gives it.
        """
        self._save()  # what is stopped from here on goes on in this folder
        (self.folder / "feedback").mkdir(exist_ok=True)
        of = {name: [row for row in rows if row.student == name] for name in found.students}
        self._write("class.html", class_page(of, found))
        self._write("grades.csv", gradebook(of))
        self._write("exercises.csv", table([vars(rows[0]), *(vars(row).values() for row in rows)]))
        for name, student in found.students.items():
            try:
                self._write(f"feedback/{student.page}", feedback(name, of[name], student))
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


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ------------------------------------------------------------------------------------------------ tables


def table(lines: list) -> str:
    """Lines as CSV; no text is taken for a formula, by spreadsheets that cut at ; either."""
    text = io.StringIO("\ufeff")  # tells Excel: UTF-8
    text.seek(1)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([FORMULA.sub(r"\1'", str(cell)) for cell in line] for line in lines)
    return text.getvalue()


def counts(rows: list[Row]) -> tuple[int, int, int, int]:
    """(points, points that can be had, exercises passed, exercises)."""
    passed = [row for row in rows if row.status == "passed"]
    points, possible = (sum(row.worth for row in some) for some in (passed, rows))
    return points, possible, len(passed), len(rows)


def gradebook(of: dict[str, list[Row]]) -> str:
    """A line per student: points, passed, and the status of each exercise."""
    asked = [" exercise ".join(row.number) for row in next(iter(of.values()))]
    lines = [["student", "points", "points possible", "passed", "exercises", *asked]]
    lines += [[name, *counts(rows), *(row.status for row in rows)] for name, rows in of.items()]
    return table(lines)


# ------------------------------------------------------------------------------------------------- pages


def plain(text) -> str:
    """Text of unknown origin for a page."""
    return html.escape(one_line(text, 900))


def class_page(of: dict[str, list[Row]], found) -> str:
    """The page for the teacher."""
    columns = next(iter(of.values()))
    notebooks = list(dict.fromkeys(row.notebook for row in columns))
    _, possible, _, exercises = counts(columns)
    numbers = ", ".join(plain(notebook[:2]) for notebook in notebooks)
    body = [f"<h1>{numbers}: {len(of)} students</h1>"]
    body += [f"<p>Graded {how(columns[0])} on {datetime.date.today()}.</p>", "<h2>To talk about next lesson</h2>"]
    body += _mistakes(of, found)
    body += ["<h2>Everybody, every exercise</h2>", '<div class="table"><table><thead><tr><th>student</th>']
    body += ["<th>points</th><th>passed</th>"]
    for notebook in notebooks:
        span = sum(row.notebook == notebook for row in columns)
        body.append(f'<th class="first" colspan="{span}" title="{plain(notebook)}">{plain(notebook[:2])}</th>')
    body.append(f"</tr><tr><th></th><th>of {possible}</th><th>of {exercises}</th>")
    for place, row in enumerate(columns):
        sign = row.number[1] + ("*" if row.worth else "")
        body.append(f'<th{_first(columns, place)} title="{plain(row.exercise)}">{sign}</th>')
    body.append('</tr></thead><tbody><tr><th scope="row">passed by</th><td></td><td></td>')
    for place in range(len(columns)):
        passed = sum(rows[place].status == "passed" for rows in of.values())
        body.append(f"<td{_first(columns, place)}>{passed}</td>")
    for name, rows in of.items():
        points, _, passed, _ = counts(rows)
        page = _link(found, name)
        body.append(f'</tr><tr><th scope="row" title="{plain(name)}"><a href="{page}">{plain(name)}</a></th>')
        body.append(f"<td>{points}</td><td>{passed}</td>")
        for place, row in enumerate(rows):
            sign, colour, _ = STATUSES[row.status]
            link = f'<a class="{colour}" href="{page}#e{"-".join(row.number)}" title="{row.status}">{sign}</a>'
            body.append(f"<td{_first(columns, place)}>{link}</td>")
    body.append("</tr></tbody></table></div>")
    shown = {row.status for rows in of.values() for row in rows}
    legend = [f'<span class="{c}">{s}&nbsp;{name}</span>' for name, (s, c, _) in STATUSES.items() if name in shown]
    body.append(f"<p>{' &ensp; '.join(legend)} &ensp; * gives points (docs/teaching.md, Assessment)</p>")
    unread = [f"{name}: {one}" for name, own in found.students.items() for one in own.unread] + found.nobodys
    if unread:
        body.append(f"<h2>Not understood, not graded: {len(unread)}</h2><ul>")
        body += [f"<li>{plain(one)}</li>" for one in unread] + ["</ul>"]
    return PAGE.format(title="The class", width="90rem", body="\n".join(body))


def _first(columns, place):
    """The mark of the first exercise of a notebook."""
    is_first = place == 0 or columns[place].notebook != columns[place - 1].notebook
    return ' class="first"' if is_first else ""


def how(row: Row) -> str:
    """How students' programs ran."""
    return "without isolation from the machine" if row.isolation == "none" else "in isolation (bubblewrap)"


def _mistakes(of, found):
    """What came up, most often first: the exercise, what the check says, and for whom."""
    who = defaultdict(list)
    for name, rows in of.items():
        for row in rows:
            if STATUSES[row.status][1] == "bad":
                said = row.hint or row.seen.partition(" | ")[0]
                who[row.notebook[:2], row.exercise, row.status, said].append(name)
    if not who:
        yield "<p>No exercise went wrong.</p>"
        return
    yield "<ol>"
    for (notebook, exercise, status, said), names in sorted(who.items(), key=lambda one: -len(one[1]))[:LONGEST]:
        links = ", ".join(f'<a href="{_link(found, name)}">{plain(name)}</a>' for name in names)
        yield f"<li><b>{len(names)} of {len(of)}</b>, {notebook} exercise {plain(exercise)}, {status}: "
        yield f"<q>{plain(said)}</q>"
        yield f"<br>{links}</li>" if len(names) <= 10 else f"<details><summary>who</summary>{links}</details></li>"
    yield "</ol>"
    if len(who) > LONGEST:
        yield f"<p>And {len(who) - LONGEST} rarer ones: see exercises.csv.</p>"


def _link(found, name):
    """Where a student's page is, from the page of the class."""
    return quote(f"feedback/{found.students[name].page}", errors="surrogateescape")


def feedback(name: str, rows: list[Row], student) -> str:
    """A student's page."""
    points, possible, passed, exercises = counts(rows)
    body = [f"<h1>{plain(name)}</h1>", f"<p>{passed} of {exercises} exercises passed.</p>"]
    if possible:
        body.append(f"<p>{points} of {possible} points.</p>")
    body.append(f"<p>Graded {how(rows[0])}.</p>")
    notebooks = list(dict.fromkeys(row.notebook for row in rows))
    body += [f"<p>{plain(said)}</p>" for said in student.remarks(notebooks)]
    for notebook in notebooks:
        body.append(f"<h2>{plain(notebook)}</h2>")
        for row in rows:
            if row.notebook != notebook:
                continue
            sign, colour, _ = STATUSES[row.status]
            body.append(f'<h3 id="e{"-".join(row.number)}">{plain(row.exercise)}</h3>')
            body.append(f'<p class="{colour}">{sign} {row.status}</p>')
            lines = "\n".join(plain(line) for line in row.seen.split(" | "))  # numbers in lines of their own
            body.append(f'<p class="seen">{lines}</p>')
            if row.hint:
                body.append(f"<p>Hint: {plain(row.hint)}</p>")
    if student.unread:
        body += ["<h2>Files that were not graded</h2>", "<ul>"]
        body += [f"<li>{plain(Path(one).name)}</li>" for one in student.unread] + ["</ul>"]
    return PAGE.format(title=plain(name), width="45rem", body="\n".join(body))
