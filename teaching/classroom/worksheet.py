"""Grades in the file that a platform gave: Moodle's grading worksheet, or the export of Canvas's gradebook.

The given file is read only. All of its cells stay as they are but the grades, and with Moodle the feedback comments, of
those who handed in. Numbers are scaled to the most that the platform has for the assignment.
"""

import html
import re
from pathlib import Path

from teaching.classroom.points import Mark, as_number, number, read_table, same, table_text
from teaching.classroom.report import FORMULA
from tools.course import one_line

MOODLE = ("Identifier", "Grade", "Maximum Grade", "Feedback comments")
CANVAS = ("Student", "ID", "Section")
ASSIGNMENT = re.compile(r".+ \(\d+\)")  # a column of Canvas: "Homework 1 (12345)"


def fill(path: Path, marks: dict[str, Mark], column: str) -> tuple[str, list[str]]:
    """The filled table as text for a file, and sentences on what has no partner.

    Moodle's number of a participant stands behind the name of the student's folder, Canvas's number of a person behind
    the name in the file's name. Without such a number the whole name must be the same, and only one person's.

    Args:
        path: the file as the platform gave it, with commas, semicolons or tabs.
        marks: {student: mark}; the line of one who handed in nothing that counts stays as it is.
        column: of Canvas, how the assignment's column begins; needed where there are several.

    Raises:
        ValueError: if it is neither of the two files, or nothing that was graded gives points.
    """
    lines, delimiter = read_table(path)
    head = [cell.strip() for cell in lines[0]]
    lines = [line + [""] * (len(head) - len(line)) for line in lines]
    possible = next(iter(marks.values())).possible
    if not possible:
        raise ValueError(f"{path} cannot be filled: nothing that was graded gives points.")
    if set(MOODLE) <= set(head):
        people, who, name, grade, most = _moodle(lines, head)
    elif set(CANVAS) <= set(head):
        people, who, name, grade, most = _canvas(path, lines, head, column)
    else:
        missing = ", ".join(one for one in MOODLE if one not in head)
        raise ValueError(
            f"{path} is no worksheet of Moodle (it lacks {missing}) and no export of Canvas's gradebook: its columns "
            f"are {one_line(', '.join(head))}. Moodle names them in your language: set it to English, and try again."
        )
    said, filled = [], set()
    for student, mark in marks.items():
        line = _line_of(student, people, who, name)
        if line is None:
            said.append(f"{student}: handed in, but has no line in {path.name}.")
        elif id(line) in filled:
            said.append(f"{student}: the line in {path.name} is another's who handed in, too; see to it by hand.")
        elif mark.by_hand is None and all(
            row.status == "missing notebook" and row.by_hand is None for row in mark.rows
        ):
            said.append(f"{student}: nothing that counts was handed in; the line in {path.name} stays as it is.")
        else:
            top = most(line)
            earned = mark.points if top is None else mark.points * top / possible
            if top is not None and earned > top:
                said.append(
                    f"{student}: {number(earned)} is more than the most, {number(top)}, which stands there now."
                )
                earned = top
            line[grade] = number(earned)
            if "Feedback comments" in head:
                line[head.index("Feedback comments")] = comment(mark)
        filled.add(id(line))
    without = [line[name] or line[who] for line in people if id(line) not in filled]
    if without:
        said.append(f"In {path.name}, but nothing handed in; as they were: {', '.join(without)}.")
    return table_text(lines, delimiter, "\r\n"), said


def _moodle(lines, head):
    """(lines of people, columns of number, name and grade, what a line says is the most)"""
    who, top = head.index("Identifier"), head.index("Maximum Grade")
    name = head.index("Full name") if "Full name" in head else who  # names may be hidden
    return lines[1:], who, name, head.index("Grade"), lambda line: _most(line[top])


def _canvas(path, lines, head, column):
    there = [cell for cell in head if ASSIGNMENT.fullmatch(cell)]
    chosen = [cell for cell in there if same(cell).startswith(same(column))]
    if len(chosen) != 1:
        what = f"of {len(chosen)} columns that begin with {column!r}" if column else f"of {len(chosen)} assignments"
        raise ValueError(
            f"{path}: one {what} must be chosen, with --column and how it begins; there: "
            f"{one_line(', '.join(there)) or 'none'}."
        )
    grade, student = head.index(chosen[0]), head.index("Student")
    above = next((at for at, line in enumerate(lines) if line[student].strip() == "Points Possible"), 0)
    top = _most(lines[above][grade]) if above else None
    people = [line for line in lines[above + 1 :] if line[student].strip() not in ("", "Student, Test")]
    return people, head.index("ID"), student, grade, lambda line: top


def _most(cell):
    """What a cell says is the most; None if it says nothing that points could be scaled to."""
    most = as_number(cell)
    return most if most > 0 else None


def _line_of(student, people, who, name):
    """The line of a student, or None."""
    if found := re.fullmatch(r"(.*)_(\d+)", student, re.S):
        student, own = found.groups()
        for line in people:
            if (there := re.search(r"(\d+)\s*$", line[who])) and there[1] == own:
                return line
    named = [line for line in people if _names(line[name]) & _names(student)]
    return named[0] if len(named) == 1 else None


def _names(name):
    """A name as it is compared, and "Li, Kim" turned round."""
    return {same(name), same(" ".join(reversed(name.split(", ", 1))))}


def comment(mark: Mark) -> str:
    """What a student reads beside the grade, as the HTML that Moodle stores."""
    said = [f"{number(mark.points)} of {number(mark.possible)} points."]
    if mark.by_hand is not None:
        said.append(f"Set by hand: {mark.reason or 'by your teacher'}")
    for row in mark.shown():
        said.append(f"Notebook {row.notebook[:2]}, exercise {row.exercise}: {row.status}")
        if row.by_hand is not None:
            said[-1] += f"; {number(row.by_hand)} set by hand: {row.reason or 'by your teacher'}"
        elif row.status != "passed":
            said[-1] += f". {row.seen.partition(' | ')[0]} {row.hint}"
    return FORMULA.sub(r"\1'", "<br>\n".join(html.escape(one_line(line, 900), quote=False) for line in said))
