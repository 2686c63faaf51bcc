"""Everything for one class in one folder, from docs/teaching.md and the notebooks.

    python -m teaching.classroom.one_class 3 --folder ../class_3       # make class CLASS=3 FOLDER=../class_3

The folder gets `index.html`, `slides/` and `homework/`. It is complete before it gets its name. Needs the packages of
the website (`pip install -e '.[teaching]'`).
"""

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbformat.v4 import new_markdown_cell, new_notebook

from teaching.classroom.plan import Class, cells_of, exercise, question, read_plan
from teaching.classroom.report import render
from tools.course import whole_folder
from tools.hand_out import student, what_they_read


def one_class(number: str, folder: Path) -> Class:
    """Write the folder of class "0" to "9", and return the class. If this fails, nothing is written.

    Raises:
        FileExistsError: if something is in the folder.
        ValueError: if there is no such class, or the plan and the notebooks do not agree.
    """
    classes = {one.number: one for one in read_plan()}
    if number not in classes:
        raise ValueError(f"there is no class {number}; CLASS is one of {', '.join(classes)}.")
    one = classes[number]
    with whole_folder(folder) as made:
        print(f"Homework: {', '.join(one.notebooks)}", flush=True)
        student(made / "homework", only=one.notebooks)
        write_slides(one, made)
        (made / "index.html").write_text(_page(one), encoding="utf-8")
    return one


def grade_line(one: Class) -> str:
    """The command that grades the homework of a class."""
    return f'make grade FOLDER=../handed-in ARGS="--only {" ".join(one.homework)}"'


def deck_of(one: Class):
    """One notebook with the cells of a class: of each section what leads to its stops, of the rest its text."""
    first = " ".join(re.split(r"(?<=\.)\s", one.about)[:2])  # the title's slide shows two sentences
    cells = [new_markdown_cell(f"# {one.name}\n\n{first}\n\n{one.about}")]
    for row in one.rows:
        if row.section:
            cells += _stops(row)
        if row.exercise:
            title = rf"## Exercise \1 of notebook {row.exercise[:2]}: "
            cells.append(new_markdown_cell(re.sub(r"^#+ Exercise (\d+)[.:] ", title, exercise(row.exercise))))
        if row.question:
            cells.append(new_markdown_cell(f"## On paper\n\n{question(row.question)}"))
    return new_notebook(cells=cells)


def _stops(row):
    # The section up to its first prediction; and each prediction that the row asks or that leads to one of its stops.
    parts = [[]]
    for cell in cells_of(row.section):
        if "predict" in cell.metadata.get("tags", []):
            parts.append([])
        parts[-1].append(cell)
    named = row.stops + [one.text for one in row.ask]
    kept = [part for part in parts[1:] if any(name in " ".join(cell.source.split()) for name in named for cell in part)]
    return [cell for part in [parts[0], *kept] for cell in part]


def write_slides(one: Class, folder: Path) -> None:
    """Write the deck of a class as `slides/class_3.html`, with all that it reads, into `folder`."""
    from teaching.website.build import CODE, LINK  # what follows is needed here only, and takes seconds
    from teaching.website.slides import make_slides

    def without_links(text, _path):  # the deck stands alone: of a link to another page its words are left
        parts = CODE.split(text)
        parts[::2] = [LINK.sub(lambda link: link[0] if link[1] else link[2], part) for part in parts[::2]]
        return "".join(parts)

    with tempfile.TemporaryDirectory() as beside:
        path = Path(beside) / f"class_{one.number}.ipynb"
        nbformat.write(deck_of(one), path)
        make_slides([path], folder / "slides", without_links)
    (folder / "slides" / "index.html").unlink()  # it lists one deck


def _page(one):
    from teaching.website import colors
    from teaching.website.slides import MATHJAX_SETTINGS, markdown

    plan = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", f"{one.about}\n\n{one.table}")
    return render(
        "class.html", one=one, plan=markdown.render(plan), asked=[asked for row in one.rows for asked in row.ask],
        inline=markdown.renderInline, mathjax=MATHJAX_SETTINGS, colors=colors.css(), grade=grade_line(one),
        beside=what_they_read(one.notebooks),
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Write the folder, and say how its homework is graded."""
    parser = argparse.ArgumentParser(prog="python -m teaching.classroom.one_class", description=__doc__.splitlines()[0])
    parser.add_argument("number", help="of the class, 0 to 9")
    parser.add_argument("--folder", type=Path, help="to write; must not exist, or be empty (default: ../class_NUMBER)")
    chosen = parser.parse_args(arguments)
    folder = chosen.folder or Path("..") / f"class_{chosen.number}"
    try:
        one = one_class(chosen.number, folder)
    except (OSError, ValueError) as error:
        sys.exit(f"class: {error}")
    except ImportError as error:
        sys.exit(f"class: {error}. It needs the website's packages: pip install -e '.[teaching]'")
    print(f"{one.name}, {one.minutes} minutes. Open {os.path.join(folder, 'index.html')}")
    if one.homework:
        print(f"Grade its homework with\n    {grade_line(one)}")


if __name__ == "__main__":
    main()
