"""The plan of the classes, read from plan.toml, and its tables in docs/teaching.md.

    python -m teaching.classroom.plan           # writes the tables of docs/teaching.md, and says how long each class is

No row says its minutes: they follow from what is done in it, by one recipe.
"""

import functools
import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import nbformat

from tools.course import ROOT, notebooks_of, write_beside
from tools.reading import minutes as reading_minutes
from tools.votes import votes_of

PLAN = Path(__file__).with_name("plan.toml")
PAGE = ROOT / "docs" / "teaching.md"
BEGIN, END = "<!-- from teaching/classroom/plan.toml -->\n", "<!-- end of the plan -->\n"
LONGEST = 90  # minutes of a class
VOTE, PREDICT, SAY, QUESTION = 10, 3, 1, 4  # minutes of each
SHARE = 0.5  # of the minutes that reading a section alone takes; the rest is left for home
MINUTES = {"vote": VOTE, "predict": PREDICT, "write": PREDICT, "say": SAY}


@dataclass(frozen=True)
class Question:
    """What is asked at a stop."""

    kind: str  # "vote", "predict", "write" or "say"
    text: str  # Markdown; of a vote or a prediction as the notebook has it
    right: str  # the answer, Markdown; "" of the others


@dataclass(frozen=True)
class Row:
    """A stretch of a class: a section, an exercise, a question on paper, or something else."""

    section: str  # "1.3", or ""
    stops: list[str]
    ask: list[Question]
    exercise: str  # "01 1": notebook 01, exercise 1; or ""
    question: str  # the same, of *Check yourself*
    also: str
    minutes: int


@dataclass(frozen=True)
class Class:
    """One class."""

    number: str  # "0" to "9"; "W" is a block of the workshop
    title: str
    about: str
    rows: list[Row]
    stuck: list[list[str]]  # at what, what to ask, what to wait for
    sections: list[str]  # homework: "1.2"
    exercises: list[str]  # homework: "01 2", or a whole notebook, "00"
    and_so: str = ""  # to be said of it

    @property
    def name(self) -> str:
        """ "Class 3: Gates"."""
        return self.title if self.number == "W" else f"Class {self.number}: {self.title}"

    @property
    def minutes(self) -> int:
        """Of all rows [min]."""
        return sum(row.minutes for row in self.rows)

    @property
    def notebooks(self) -> list[str]:
        """Numbers of the notebooks that it opens, in order: what is handed out for it."""
        return sorted({f"0{row.section[0]}" for row in self.rows if row.section})

    @property
    def homework(self) -> list[str]:
        """What `make grade` needs behind --only: "01.2" is exercise 2 of notebook 01, "00" the whole notebook."""
        return [name.replace(" ", ".") for name in self.exercises]


def read_plan(path: Path = PLAN) -> list[Class]:
    """The classes, with the minutes that the recipe gives to each row.

    Raises:
        ValueError: a row names a section, an exercise or a question that no notebook has.
    """
    plan = tomllib.loads(path.read_text(encoding="utf-8"))["class"]
    return [Class(rows=[_row(row) for row in one.pop("row")], **{k: _strip(v) for k, v in one.items()}) for one in plan]


def _strip(value):
    return value.strip() if isinstance(value, str) else value


def _row(row):
    named = {name: row.get(name, "") for name in ("section", "exercise", "question", "also")}
    ask = [Question(kind, text, one.get("right", "")) for one in row.get("ask", []) for kind, text in one.items()
           if kind != "right"]  # fmt: skip
    taken = sum(MINUTES[one.kind] for one in ask)
    if named["section"]:
        taken += math.ceil(SHARE * minutes_of(named["section"]))
    if named["exercise"]:
        taken += exercise_minutes(named["exercise"])
    if named["question"]:
        question(named["question"])
        taken += QUESTION
    return Row(stops=row.get("stops", []), ask=ask, minutes=row.get("minutes", taken), **named)


# ------------------------------------------------------------------------------ what the notebooks have


@functools.cache
def _cells(number):
    return nbformat.read(notebooks_of(ROOT / "notebooks", [number])[0], as_version=4).cells


def _between(number, start, end):
    # The cells from the one that matches `start` up to the next that matches `end`.
    found = []
    for cell in _cells(number):
        text = cell.source if cell.cell_type == "markdown" else ""
        if re.match(start, text):
            found = [cell]
        elif found and re.match(end, text):
            return found
        elif found:
            found.append(cell)
    return found


def cells_of(name: str) -> list:
    """The cells of section "1.3".

    Raises:
        ValueError: if there is none.
    """
    cells = _between(f"0{name[0]}", rf"## {re.escape(name)} ", "## ")
    if not cells:
        raise ValueError(f"the plan names section {name}, and notebook 0{name[0]} has none: correct plan.toml.")
    return cells


def exercise(name: str) -> list:
    """The cells of an exercise, "01 2": its text, and what follows up to the next.

    Raises:
        ValueError: if there is none.
    """
    number, n = name.split()
    cells = _between(number, rf"### Exercise {n}\b", "##")
    if not cells:
        raise ValueError(f"the plan names exercise {n} of notebook {number}, which has none: correct plan.toml.")
    return cells


def minutes_of(name: str) -> float:
    """What reading, predicting and running section "1.3" takes, alone [min]."""
    return reading_minutes(nbformat.v4.new_notebook(cells=cells_of(name)))


def exercise_minutes(name: str) -> int:
    """What exercise "01 2" says that it takes [min]; "00" is the whole notebook."""
    text = exercise(name)[0].source if " " in name else _cells(name)[0].source
    return int(re.search(r"^\*\*(?:Minutes:\*\* )?(\d+)", text, re.M)[1])


def question(name: str) -> str:
    """A question of *Check yourself*, "01 3", in Markdown.

    Raises:
        ValueError: if there is none.
    """
    number, n = name.split()
    found = re.search(rf"^{n}\. (.*(?:\n+ +.*)*)", _between(number, "## Check yourself", "## ")[0].source, re.M)
    if not found:
        raise ValueError(f"the plan names question {n} of notebook {number}, which has none: correct plan.toml.")
    return found[1]


def asked_in(row: Row) -> list[tuple[Question, str, str, str, list[str]]]:
    """The votes and predictions of a row, each with what the notebook says before it, itself, behind it, its answers.

    Raises:
        ValueError: a question that the section does not ask in these words, or a right answer that it does not offer.
    """
    there, said = [], ""
    for cell in cells_of(row.section) if row.section else []:
        if cell.cell_type == "markdown":
            said += cell.source
        if "predict" in cell.metadata.get("tags", []):
            text = cell.source[cell.source.rfind("\n\n", 0, cell.source.index("**Predict")) + 1 :].strip()
            there += votes_of(said, text.removeprefix("**Predict.**").strip())
            said = ""
    found = []
    for one in row.ask:
        if one.kind not in ("vote", "predict"):
            continue
        matches = [vote for vote in there if vote[1] == one.text]
        if not matches:
            raise ValueError(f"section {row.section} does not ask {one.text!r}. It asks: {[vote[1] for vote in there]}")
        if matches[0][3] and one.right not in matches[0][3]:
            raise ValueError(f"{one.text!r} does not offer {one.right!r}, but {matches[0][3]}: correct plan.toml.")
        found.append((one, *matches[0]))
    return found


# ------------------------------------------------------------------------------ the tables of docs/teaching.md


def table(one: Class) -> str:
    """A class as docs/teaching.md shows it, in Markdown."""
    lines = [f"### {one.name}", "", one.about, "", "| min | section | stop at | ask |", "|---|---|---|---|"]
    now = 0
    for row in one.rows:
        what = row.section
        stops, asked = "; ".join(row.stops), " ".join(map(_asked, row.ask))
        if row.exercise:
            stops = f"**{said([row.exercise])}**"
        if row.question:
            stops = f"{row.question.replace(' ', ' question ')}, on paper"
        words = " ".join(part for part in (asked, row.also) if part)
        lines.append(f"| {now}–{now + row.minutes} | {what} | {stops} | {words} |")
        now += row.minutes
    if one.stuck:
        lines += ["", "| stuck at | ask | wait for |", "|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in one.stuck]
    return "\n".join(lines) + "\n"


def _asked(one):
    text = f"“{one.text}”" if one.kind in ("vote", "predict") else one.text
    return f"**Vote:** {text}" if one.kind == "vote" else text


def said(names: list[str]) -> str:
    """ "01 exercises 2 and 3" for "01 2" and "01 3"; "00" is the whole notebook."""
    parts = []
    for number in dict.fromkeys(name[:2] for name in names):
        *first, last = [name[3:] for name in names if name.startswith(number)]
        many = f"exercises {', '.join(first)} and {last}" if first else f"exercise {last}"
        parts.append(f"{number} {many}" if last else f"{number}, run to its last cell")
    return ", ".join(parts)


def overview(classes: list[Class]) -> str:
    """The table above the classes, in Markdown."""
    lines = ["| class | minutes | live | homework: sections | homework: exercises |", "|---|---|---|---|---|"]
    for one in classes:
        if one.number != "W":
            live = ", ".join(row.section for row in one.rows if row.section)
            link = re.sub(r"[^\w\- ]", "", one.name.lower()).replace(" ", "-")
            read, work = sum(map(minutes_of, one.sections)), sum(map(exercise_minutes, one.exercises))
            sections = f"{', '.join(one.sections)} ({round(read)} min)" if one.sections else ""
            exercises = f"{said(one.exercises)} ({work} min)" if work else ""
            exercises += f", {one.and_so}" if one.and_so else ""
            lines.append(f"| [{one.number}](#{link}) | {one.minutes} | {live} | {sections} | {exercises} |")
    return "\n".join(lines) + "\n"


def page_of(text: str, classes: list[Class]) -> str:
    """docs/teaching.md with the plan's part made anew.

    Raises:
        ValueError: if the marks of that part are not there.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"docs/teaching.md needs {BEGIN.strip()} and {END.strip()}, once each.")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    return f"{before}\n{overview(classes)}\n" + "\n".join(map(table, classes)) + f"\n{after}"


def main() -> None:
    """Write the tables, and print the minutes."""
    classes = read_plan()
    write_beside(PAGE, page_of(PAGE.read_text(encoding="utf-8"), classes))
    for one in classes:
        print(f"{one.minutes:3} minutes  {one.name}")


if __name__ == "__main__":
    main()
