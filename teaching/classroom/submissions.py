"""What is asked, and what of a notebook that was handed in is run.

The course's notebooks say what is asked: a cell tagged "exercise" defines a function and ends in its check; "points"
in the cell's metadata is what the exercise is worth. What was handed in is read by sandbox_reader.py, inside the
sandbox and for a limited time: nothing of it is taken apart in the grader's own process.
"""

import ast
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from teaching.classroom import sandbox_reader
from teaching.classroom.find_submissions import LARGEST_FILE
from teaching.classroom.sandbox import Died, Sandbox, TimeUp, run_limited
from tools.course import ROOT, notebooks_of, one_line, without_solutions

READING = 30.0  # seconds for one notebook
COURSE = ROOT / "notebooks"
NOTEBOOK = str(ROOT / "checks" / "notebook.py")
READER = ["-I", "-c", Path(sandbox_reader.__file__).read_text(encoding="utf-8"), NOTEBOOK]
OPEN_IT = "Open it in JupyterLab, clear its outputs, save it, hand it in again."
HINTS = {  # beside what the reader saw, if there is one
    "broken notebook": "Does JupyterLab open it? If not, hand in a good copy; if so, clear its outputs and save it.",
    "does not run": "Mend the line and run the cell: a notebook that is handed in should run from top to bottom.",
    "no such function": "The grader looks for {}. Was the cell deleted or the function renamed, or is the notebook of "
    "another course, or of an older version of this one?",
}


@dataclass(frozen=True)
class Assignment:
    """What the course asks for: the learner's function and the check that it is handed to."""

    notebook: str  # name without its ending: "01_rmsnorm"
    title: str  # "1. RMSNorm for many tokens"
    function: str
    check: str
    stub: str  # the definition that is handed out, as ast.dump writes it
    points: float


@dataclass(frozen=True)
class Answer:
    """What a learner wrote for an exercise: a verdict that needs no kernel, or the code to run."""

    status: str = ""  # of the verdict; empty if the code is to be run
    seen: str = ""
    hint: str = ""
    code: str = ""  # the function, and what it needs
    own: str = ""  # the function or the cell as the learner wrote it
    line: int = 0  # of `own`, from 1: where the mistake is; 0 if that is not known
    reaches: tuple = ()  # what a program that deceives its check has need of: sandbox_reader.py


def read_course(only: list[str] | None = None) -> dict[str, tuple[list[Assignment], list[str]]]:
    """{notebook: (its exercises, the code cells a learner may build on)}, from the course's own notebooks.

    Args:
        only: names of notebooks, or how they begin, such as "01"; with ".2" behind it this exercise alone.

    Raises:
        ValueError: if a cell tagged "exercise" does not end in `check_...(function)`, or there is no such notebook or
            exercise.
    """
    course, wanted = {}, [name.partition(".")[::2] for name in only or [""]]
    for path in notebooks_of(COURSE, [name for name, _ in wanted]):
        notebook, title, exercises = json.loads(path.read_text(encoding="utf-8")), "", []
        for cell in notebook["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                title = (re.findall(r"^#+ Exercise (.+?) *$", source, re.M) or [title])[-1]
            elif "exercise" in cell["metadata"].get("tags", []):
                points = cell["metadata"].get("points", 0)
                exercises.append(_exercise(path.stem, title.replace(":", ".", 1), source, points))
        named = {number for name, number in wanted if path.stem.startswith(name)}
        if exercises:
            cells = [cell for cell in without_solutions(notebook)["cells"] if cell["cell_type"] == "code"]
            course[path.stem] = _chosen(path, exercises, named), ["".join(cell["source"]) for cell in cells]
    return course


def _chosen(path, exercises, named):
    """The exercises that are graded: those of the numbers that were named, or all."""
    numbers = [one.title.partition(".")[0] for one in exercises]
    if unknown := sorted(named - {"", *numbers}):
        raise ValueError(f"{path.stem} has no exercise {unknown[0]}; it has {', '.join(numbers)}: name it as in 02.3.")
    return [one for number, one in zip(numbers, exercises, strict=True) if {number, ""} & named]


def _exercise(notebook, title, source, points):
    match ast.parse(source).body:
        case [*above, ast.Expr(ast.Call(ast.Name(check), [ast.Name(function)], []))] if check.startswith("check_"):
            stubs = [node for node in above if isinstance(node, ast.FunctionDef) and node.name == function]
            if stubs:
                return Assignment(notebook, title, function, check, ast.dump(stubs[-1]), points)
    raise ValueError(f"{notebook}, exercise {title}: the cell must define the function and end in check_...(function).")


def read_file(path: Path) -> bytes:
    """What a student's file holds.

    Raises:
        ValueError, OSError: if it is a link or too large, or cannot be opened.
    """
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is a link, a folder or a device, not a file")
    if found.st_size > LARGEST_FILE:
        raise ValueError(f"it has {found.st_size:,} bytes, more than {LARGEST_FILE:,}")
    return path.read_bytes()


def judge_submission(
    files: list[Path], exercises: list[Assignment], course: list[str], sandbox: Sandbox | None
) -> list[Answer]:
    """For each exercise of one notebook what the learner wrote.

    Args:
        files: what was handed in for it, oldest first: the last one counts.
        course: code cells that the learner may build on.
    """
    if not files:
        hint = "Hand it in under the name that it has in the course."
        return [Answer("missing notebook", hint=hint)] * len(exercises)
    asked = [[(one.function, one.stub) for one in exercises], course]

    def broken(seen, hint=OPEN_IT):
        return [Answer("broken notebook", f"It could not be read{seen}.", hint)] * len(exercises)

    try:
        given = json.dumps(asked).encode() + b"\n" + read_file(files[-1])
    except (OSError, ValueError) as error:
        return broken(f": {one_line(getattr(error, 'strerror', None) or error, 150)}")
    try:
        found = json.loads(run_limited(READER, given, READING, sandbox))
    except TimeUp:
        return broken(f" in {READING:g} seconds", "Delete cells that are not part of the homework.")
    except Died as error:
        return broken(f": {str(error).rstrip('.')}")
    return [_answer(exercise, **one) for exercise, one in zip(exercises, found, strict=True)]


def _answer(exercise, status="", seen="", **more):
    return Answer(status, one_line(seen), HINTS.get(status, "").format(exercise.function), **more)
