"""What all tools share: where the course is, its notebooks, and writing that a stop cannot spoil."""

import contextlib
import datetime
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SAID = "; solutions are at the end"  # in the notebooks' text, and not true of the folder that is handed out
KEPT_CELL_METADATA = {"tags", "jp-MarkdownHeadingCollapsed", "claim", "points"}
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)  # a file that is no notebook


def one_line(text, most: int = 300) -> str:
    """A text of unknown origin as one short line of printable characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in str(text)[:2000]).split())[:most]


def notebooks_of(folder: Path, only: Sequence[str] = ()) -> list[Path]:
    """The notebooks in a folder, or only those whose names begin so ("01"); no copies of JupyterLab or `reset`.

    Raises:
        ValueError: if no notebook begins with one of them.
    """
    there = sorted(path for path in folder.glob("*.ipynb") if re.fullmatch(r"\d\d_[a-z_]+", path.stem))
    for name in only:
        if not any(path.stem.startswith(name) for path in there):
            raise ValueError(f"no notebook of the course begins with {name}; such a name is 02_rope, or 02.")
    return [path for path in there if path.stem.startswith(tuple(only) or "")]


def asks_for(source: str) -> str:
    """The function that a code cell hands to a check, if it is an exercise; else empty."""
    return (re.findall(r"^[ \t]*check_\w+\(\s*(\w+)", source, re.M) or [""])[-1]


def in_solutions(cells: list[tuple[str, str]]) -> list[bool]:
    """Of each cell, as (type, text), whether it stands in the section "Solutions", which is the course's."""
    inside, found = False, []
    for kind, text in cells:
        if kind == "markdown" and (heading := re.match(r"##? +(.*)", text)):
            inside = heading[1].strip() == "Solutions"
        found.append(inside)
    return found


def without_solutions(notebook: dict) -> dict:
    """A copy of a notebook (as JSON) without its section "Solutions", outputs, counts, answers and foreign metadata.

    Raises:
        ValueError: if there are exercises but no heading "## Solutions", so that nothing is handed out by mistake.
    """
    notebook = json.loads(json.dumps(notebook))
    solutions = in_solutions([(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]])
    kept = [cell for cell, inside in zip(notebook["cells"], solutions, strict=True) if not inside]
    for cell in kept:
        folds = cell["metadata"].get("jupyter", {})
        cell["metadata"] = {name: cell["metadata"][name] for name in KEPT_CELL_METADATA & cell["metadata"].keys()}
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
            if folds.get("source_hidden"):
                cell["metadata"]["jupyter"] = {"source_hidden": True}  # no output is left to fold
        if SAID in (source := "".join(cell["source"])):
            cell["source"] = source.replace(SAID, "").splitlines(keepends=True)
    if not any(solutions) and any("exercise" in cell["metadata"].get("tags", []) for cell in kept):
        raise ValueError('a notebook has exercises but no heading "## Solutions": put it before the first solution.')
    names = notebook["metadata"].keys() & {"kernelspec", "language_info"}
    return notebook | {"cells": kept, "metadata": {name: notebook["metadata"][name] for name in names}}


# ------------------------------------------------------------------------------------------------ files


def write_beside(path: Path, data: str | bytes) -> None:
    """Write a file so that a stop at any moment leaves the old file or the new one, never half of one."""
    beside = path.with_name(f".{os.getpid()}.part")
    try:
        with open(beside, "wb") as file:
            file.write(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(folder: Path):
    """A folder to write into; it gets its name at the end of the `with`. FileExistsError if something is in it."""
    folder = Path(folder).absolute()
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise FileExistsError(f"{folder} is there already and not an empty folder: move it away, or give another name.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as beside:
        made = Path(beside) / "folder"
        made.mkdir()
        yield made
        if folder.exists():
            folder.rmdir()  # it is empty; if it is not any more, this fails and nothing is lost
        made.rename(folder)


def new_file(path):
    """An empty file beside `path` with a dated name that nothing had before, also twice in the same second."""
    when = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for count in itertools.count(1):
        kept = path.with_name(f"{path.stem}_kept_{when}{f'_{count}' if count > 1 else ''}{path.suffix}")
        with contextlib.suppress(FileExistsError):
            kept.touch(exist_ok=False)
            return kept


# ------------------------------------------------------------------------------------------------ git


def git(folder: Path, *words: str) -> bytes:
    """What git prints; ValueError with its last line if it refuses, or if git is missing."""
    try:
        env = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(["git", *words], cwd=folder, env=env, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise ValueError(f"git is not installed, or there is no folder {folder}. Nothing was changed.") from error
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace").strip() or "it gives no reason"
        raise ValueError(f"git {words[0]}: {reason.splitlines()[-1]}. Nothing was changed.")
    return done.stdout


def changed_notebooks(folder: Path) -> list[Path]:
    """The notebooks in a folder whose files differ from the last commit, also those that git does not know yet.

    Raises:
        ValueError: if git is missing, or the folder is in no checkout.
    """
    said = git(folder, "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames", "--", ".")
    names = {Path(entry[3:]).name for entry in os.fsdecode(said).split("\0")}  # behind two letters and a space
    return [path for path in notebooks_of(folder) if path.name in names]


def course_version(path: Path) -> bytes:
    """A file as the newest version of the course has it that a clone holds, without commits of the learner's own.

    Where no upstream branch tells them apart, that of the last commit; ValueError if git has no such file.
    """
    commit = "HEAD"
    with contextlib.suppress(ValueError):
        commit = git(path.parent, "merge-base", "HEAD", "@{upstream}").decode().strip()
    try:
        return git(path.parent, "cat-file", "blob", f"{commit}:./{path.name}")
    except ValueError as error:
        raise ValueError(f"no fresh copy of {path}: {error} Copy it from where you got the course.") from error
