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


def without_solutions(notebook: dict) -> dict:
    """A copy of a notebook (as JSON) without its section "Solutions", outputs, counts and answers in metadata.

    Raises:
        ValueError: if there are exercises but no heading "## Solutions", so that nothing is handed out by mistake.
    """
    notebook, kept, inside, found = json.loads(json.dumps(notebook)), [], False, False
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        heading = re.match(r"##? +(.*)", source) if cell["cell_type"] == "markdown" else None
        if heading:
            inside = heading[1].strip() == "Solutions"
            found = found or inside
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
            if cell["metadata"].pop("jupyter", {}).get("source_hidden"):
                cell["metadata"]["jupyter"] = {"source_hidden": True}  # no output is left to fold
        for question in cell["metadata"].get("questions", []):
            question.pop("answer", None)
        if SAID in source:
            cell["source"] = source.replace(SAID, "").splitlines(keepends=True)
        if not inside:
            kept.append(cell)
    if not found and any("exercise" in cell["metadata"].get("tags", []) for cell in kept):
        raise ValueError('a notebook has exercises but no heading "## Solutions": put it before the first solution.')
    notebook["cells"] = kept
    for name in ("source_hash", "helpers_hash", "outputs_hash"):  # of the notebook with solutions and outputs
        notebook["metadata"].pop(name, None)
    return notebook


# ------------------------------------------------------------------------------------------------ files


@contextlib.contextmanager
def _beside(path):
    """A file to write beside `path`, whose place it takes at the end of the `with`; an error or stop leaves `path`."""
    beside = path.with_name(f".{os.getpid()}.part")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_beside(path: Path, text: str) -> None:
    """Write a text file so that a stop at any moment leaves the old file or the new one, never half of one."""
    with _beside(path) as beside:
        with open(beside, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, beside)


def copy_beside(path: Path, target: Path) -> None:
    """Copy a file so that a stop at any moment leaves the target as it was, or whole."""
    with _beside(target) as beside:
        shutil.copy2(path, beside)


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
        try:
            kept.touch(exist_ok=False)
            return kept
        except FileExistsError:
            continue


def committed(path: Path, commit: str = "HEAD") -> bytes:
    """A file as git has it in the last commit, or another.

    Raises:
        ValueError: if git is missing, the file is not in a checkout, or the commit has no such file.
    """
    advice = "Copy it from where you got the course."
    try:
        command = ["git", "cat-file", "blob", f"{commit}:./{path.name}"]
        done = subprocess.run(command, cwd=path.parent, capture_output=True, check=False)
    except FileNotFoundError as error:
        what = "git is not installed" if path.parent.is_dir() else f"there is no folder {path.parent}"
        raise ValueError(f"{what}: no fresh copy of {path.name} can be had. {advice}") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ValueError(f"git has no fresh copy of {path}: {said[-1] if said else 'it gives no reason'}. {advice}")
    return done.stdout
