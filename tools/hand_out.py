"""A class's notebooks: handed out without solutions, and made fresh again.

    python -m tools.hand_out student FOLDER --only 01 02       # make student FOLDER=... ARGS="--only 01 02"
    python -m tools.hand_out reset notebooks/02_rope.ipynb     # make reset NOTEBOOK=notebooks/02_rope.ipynb

Both leave the old state or the new one wherever they are stopped: what is written is complete before it gets its name.
"""

import argparse
import contextlib
import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tools import course
from tools.course import ROOT, notebooks_of, one_line

COPIED = (  # what the notebooks need to run, and the page that they link to
    "helpers", "explorers", "beyond", "checks", "pyproject.toml", "constraints.txt", "environment.yml",
    "LICENSE", "docs/glossary.md", "tools/lab.py", "tools/course.py", "tools/update.py",
)  # fmt: skip
HANDOUT = Path(__file__).parent / "handout"  # README, Makefile and a guide for assistants, for that folder only
READERS = {"05": 4, "07": 6}  # `my_parts` of these reads what a learner wrote in 01 up to that one


def student(folder: Path, root: Path = ROOT, only: Sequence[str] = ()) -> list[Path]:
    """Write a folder to hand out: the notebooks without solutions and outputs, and what they need to run.

    The checks are the course's own. They hold specifications, and `helpers/model.py` holds every part: the exercises
    ask for what a learner could look up, as in any course with a library.

    Returns:
        the notebooks written: those whose names begin as `only` says; all if it is empty.

    Raises:
        FileExistsError: if something is in the folder; nothing is written then.
        ValueError: if a notebook or its solutions cannot be found, or an exercise may be solved; nothing is written.
    """
    notebooks = notebooks_of(root / "notebooks", only)
    made_of = {path: course.without_solutions(json.loads(path.read_text(encoding="utf-8"))) for path in notebooks}
    code = [cell for notebook in made_of.values() for cell in notebook["cells"] if cell["cell_type"] == "code"]
    asked = {course.asks_for("".join(cell["source"])) for cell in code}
    with course.whole_folder(folder) as made:
        (made / "notebooks").mkdir()
        for path, notebook in made_of.items():
            _refuse_solved(path, notebook, asked)
            text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
            (made / "notebooks" / path.name).write_text(text, encoding="utf-8")
        for name in COPIED:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, made / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
            else:
                (made / name).parent.mkdir(exist_ok=True)
                shutil.copy(source, made / name)
        shutil.copytree(HANDOUT, made, dirs_exist_ok=True)
    with contextlib.suppress(ValueError):  # without git nobody knows
        for path in sorted({*notebooks} & {*course.changed_notebooks(root / "notebooks")}):
            print(f"{path.name}: it differs from the last commit: read it before you hand it out.")
    return sorted((folder / "notebooks").glob("*.ipynb"))


def what_they_read(notebooks: list[str]) -> str:
    """What learners must put beside these notebooks, in words; empty if nothing is missing."""
    numbers = [name[:2] for name in notebooks]
    readers = [number for number in numbers if number in READERS]
    last = max((READERS[number] for number in readers), default=0)
    missing = [f"{number:02}" for number in range(1, last + 1) if f"{number:02}" not in numbers]
    said = f"{' and '.join(readers)} can use what learners wrote in {', '.join(missing)}: tell them to copy the new "
    said += "notebooks into the folder that holds those. Without them they get the course's own functions."
    return said if missing else ""


def _refuse_solved(path, notebook, asked):
    """Refuse an exercise whose cell holds more than stubs, imports and the check, or whose function another cell makes.

    A name that begins with my_ or again_ is such a function, also where no cell asks for it any more. An answer in
    another form passes (a heading, a docstring alone): a notebook that was changed is named.
    """
    from checks import FILE_OF  # here, since the grader reads COPIED, and has no need of torch
    from checks import notebook as reader

    for cell in notebook["cells"]:
        source, tagged = "".join(cell["source"]), "exercise" in cell["metadata"].get("tags", [])
        if not tagged and cell["cell_type"] != "code":
            continue
        if tagged or course.asks_for(source):
            names, line = [course.asks_for(source) or "of a cell"], reader.more_than_a_stub(source)
        else:
            binds = [name for one in reader.read_cells([source]).statements for name in one.binds]
            asked_for = [name for name in binds if name in asked or re.match("my_|again_", name)]
            names, line = [name for name in asked_for if name not in FILE_OF], source.strip()
        if names and line:
            raise ValueError(
                f"{path.name}: the exercise {names[0]} is solved here, or may be: {one_line(line, 60)} ... Make it a "
                f"stub again, or get a fresh copy first: make reset NOTEBOOK=notebooks/{path.name}"
            )


def reset(path: Path) -> Path | None:
    """Replace a notebook by the course's own (`course_version`) and keep the learner's beside it, under a dated name.

    At every moment the learner's text is in one of the two files. After a stop in the middle, do it again.

    Returns:
        the file that holds the learner's text now, or None if there was nothing to keep.

    Raises:
        ValueError: if no fresh copy can be had; nothing is changed then.
    """
    path, kept = Path(path).absolute(), None
    fresh = course.course_version(path)
    if path.is_file() and path.read_bytes() == fresh:
        return None
    if path.exists():
        shutil.copy2(path, kept := course.new_file(path))
    course.write_beside(path, fresh)
    return kept


def main(arguments: list[str] | None = None) -> None:
    """Hand out or make fresh, as the command says."""
    parser = argparse.ArgumentParser(prog="python -m tools.hand_out", description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    hand = verbs.add_parser("student", help="write a folder to hand out")
    hand.add_argument("folder", type=Path)
    hand.add_argument("--only", nargs="+", default=[], metavar="NOTEBOOK", help="such as 01 02 (default: all)")
    verbs.add_parser("reset", help="a fresh copy of a notebook; yours is kept").add_argument("notebook", type=Path)
    chosen = parser.parse_args(arguments)
    try:
        if chosen.verb == "student":
            notebooks = [path.stem for path in student(chosen.folder, only=chosen.only)]
            print(f"{chosen.folder}: {len(notebooks)} notebooks without solutions, and what they need.")
            if said := what_they_read(notebooks):
                print(said)
            return
        kept = reset(chosen.notebook)
    except (OSError, ValueError) as error:
        sys.exit(f"{chosen.verb}: {error}")
    print(f"What you wrote is in {kept.name}, beside it." if kept else "There was nothing to keep.")
    print(f"{chosen.notebook} is as git has it. Did you commit an answer in it?")
    print(f"git log --oneline {chosen.notebook} lists older ones; git checkout COMMIT {chosen.notebook} takes one.")
    if kept:
        print("Is it open in JupyterLab? Close its tab without saving, then open it again.")


if __name__ == "__main__":
    main()
