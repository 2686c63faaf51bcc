"""Grades in the file that Moodle gave: the grading worksheet of an assignment.

The given file is read only. All of its cells stay as they are but the grades and the feedback comments of those who
handed in. Numbers are scaled to the most that Moodle has for the assignment.
"""

import csv
import html
import io
import math
import re
import unicodedata
from pathlib import Path

from teaching.classroom.report import FORMULA, Mark, number, table_text
from tools.course import one_line

MOODLE = ("Identifier", "Grade", "Maximum Grade", "Feedback comments")


def fill(path: Path, marks: dict[str, Mark]) -> tuple[str, list[str]]:
    """The filled table as text for a file, and sentences on what has no partner.

    Moodle's number of a participant stands behind the name of the student's folder. Without such a number the whole
    name must be the same, and only one person's.

    Args:
        path: the file as Moodle gave it, with commas, semicolons or tabs.
        marks: {student: mark}; the line of one who handed in nothing that counts stays as it is.

    Raises:
        ValueError: if it is no such file, or nothing that was graded gives points.
    """
    lines, delimiter = read_table(path)
    head = [cell.strip() for cell in lines[0]]
    lines = [line + [""] * (len(head) - len(line)) for line in lines]
    possible = next(iter(marks.values())).possible
    if not possible:
        raise ValueError(f"{path} cannot be filled: nothing that was graded gives points.")
    if missing := ", ".join(one for one in MOODLE if one not in head):
        raise ValueError(
            f"{path} is no grading worksheet of Moodle (it lacks {missing}): its columns are "
            f"{one_line(', '.join(head))}. Moodle names them in your language: set it to English, and try again."
        )
    people, (who, grade, most, feedback) = lines[1:], map(head.index, MOODLE)
    name = head.index("Full name") if "Full name" in head else who  # names may be hidden
    said, filled = [], set()
    for student, mark in marks.items():
        line = _line_of(student, people, who, name)
        if line is None:
            said.append(f"{student}: handed in, but has no line in {path.name}.")
        elif id(line) in filled:
            said.append(f"{student}: the line in {path.name} is another's who handed in, too; see to it by hand.")
        elif all(row.status == "missing notebook" for row in mark.rows):
            said.append(f"{student}: nothing that counts was handed in; the line in {path.name} stays as it is.")
        else:
            top = as_number(line[most])
            earned = mark.points * top / possible if top > 0 else mark.points  # a scale has no number
            line[grade] = number(earned)
            line[feedback] = comment(mark)
        filled.add(id(line))
    without = [line[name] or line[who] for line in people if id(line) not in filled]
    if without:
        said.append(f"In {path.name}, but nothing handed in; as they were: {', '.join(without)}.")
    return table_text(lines, delimiter, "\r\n"), said


def _line_of(student, people, who, name):
    """The line of a student, or None."""
    if found := re.fullmatch(r"(.*)_(\d+)", student, re.S):
        student, own = found.groups()
        for line in people:
            if (there := re.search(r"(\d+)\s*$", line[who])) and there[1] == own:
                return line
    named = [line for line in people if same(line[name]) == same(student)]
    return named[0] if len(named) == 1 else None


def comment(mark: Mark) -> str:
    """What a student reads beside the grade, as the HTML that Moodle stores."""
    said = [f"{number(mark.points)} of {number(mark.possible)} points."]
    for row in mark.shown():
        said.append(f"Notebook {row.notebook[:2]}, exercise {row.exercise}: {row.status}")
        if row.status != "passed":
            said[-1] += f". {row.seen.partition(' | ')[0]} {row.hint}"
    return FORMULA.sub(r"\1'", "<br>\n".join(html.escape(one_line(line, 900), quote=False) for line in said))


def as_number(text: str) -> float:
    """The number that a cell of a table holds; NaN, which no comparison holds for, if it holds none."""
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return math.nan


def read_table(path: Path) -> tuple[list[list[str]], str]:
    """(the lines of a CSV file, the mark between its cells), as Moodle writes it.

    Raises:
        ValueError, OSError: if it is not UTF-8, or cannot be opened.
    """
    text = path.read_bytes().decode("utf-8-sig")
    delimiter = max(",;\t", key=text.strip().partition("\n")[0].count)
    lines = [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if any(line)]
    return lines or [[]], delimiter


def same(name: str) -> str:
    """A name as it is compared: no capitals, no double spaces, letters and their accents in one."""
    return " ".join(unicodedata.normalize("NFC", name).casefold().split())
