"""A class's notebooks: handed out without solutions, and made fresh again.

    python -m tools.classroom.hand_out student FOLDER                    # make student FOLDER=...
    python -m tools.classroom.hand_out reset notebooks/02_rope.ipynb     # make reset NOTEBOOK=notebooks/02_rope.ipynb

Both leave the old state or the new one wherever they are stopped: what is written is complete before it gets its name.
"""

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
COPIED = (  # what the notebooks need to run, and the page that they link to
    "helpers", "checks", "pyproject.toml", "constraints.txt", "environment.yml", "LICENSE", "docs/glossary.md",
    "tools/lab.py",
)  # fmt: skip
SAID = "; solutions are at the end"  # in the notebooks' text, and not true of the folder that is handed out
HANDOUT = Path(__file__).parent / "handout"  # README and Makefile of the folder that is handed out


def write_beside(path: Path, text: str) -> None:
    """Write a text file so that a stop at any moment leaves the old file or the new one, never half of one."""
    beside = path.with_name(f".{os.getpid()}.part")
    try:
        with open(beside, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def notebooks_of(folder: Path) -> list[Path]:
    """The course's notebooks in a folder; no copies that JupyterLab or `reset` made."""
    return sorted(path for path in folder.glob("*.ipynb") if re.fullmatch(r"\d\d_[a-z_]+", path.stem))


# --------------------------------------------------------------------------------------- a folder to hand out


def without_solutions(notebook: dict) -> dict:
    """A copy of a notebook (as JSON) without its section "Solutions", outputs and counts; all else as it was.

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
            cell["metadata"].pop("jupyter", None)  # nothing is left to fold
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


def student(folder: Path, root: Path = ROOT) -> list[Path]:
    """Write a folder to hand out: the notebooks without solutions and outputs, and what they need to run.

    The checks are the course's own. They hold specifications, and `helpers/model.py` holds every part: the exercises
    ask for what a learner could look up, as in any course with a library.

    Args:
        folder: must not exist, or be empty.
        root: the course.

    Returns:
        the notebooks written.

    Raises:
        FileExistsError: if something is in the folder; nothing is written then.
        ValueError: if a notebook's solutions cannot be found, or an exercise was solved in its own cell; nothing is
            written then.
    """
    folder = Path(folder).absolute()
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise FileExistsError(f"{folder} is there already and not an empty folder: give another name.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as beside:
        made = Path(beside) / "folder"
        (made / "notebooks").mkdir(parents=True)
        for path in notebooks_of(root / "notebooks"):
            notebook = without_solutions(json.loads(path.read_text(encoding="utf-8")))
            _refuse_solved(path, notebook)
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
        if folder.exists():
            folder.rmdir()  # it is empty; if it is not any more, this fails and nothing is lost
        made.rename(folder)
    return sorted((folder / "notebooks").glob("*.ipynb"))


def _refuse_solved(path, notebook):
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if "exercise" in cell["metadata"].get("tags", []) and "raise NotImplementedError" not in source:
            advice = f"Get a fresh copy first: make reset NOTEBOOK=notebooks/{path.name}"
            raise ValueError(f"{path.name}: the exercise {source.strip().splitlines()[-1]} is solved here. {advice}")


# ---------------------------------------------------------------------------------------- a fresh copy


def committed(path: Path) -> bytes:
    """A file as git has it in the last commit.

    Raises:
        ValueError: if git is missing, the file is not in a checkout, or the last commit has no such file.
    """
    advice = "Copy it from where you got the course."
    try:
        command = ["git", "cat-file", "blob", f"HEAD:./{path.name}"]
        done = subprocess.run(command, cwd=path.parent, capture_output=True, check=False)
    except FileNotFoundError as error:
        what = "git is not installed" if path.parent.is_dir() else f"there is no folder {path.parent}"
        raise ValueError(f"{what}: no fresh copy of {path.name} can be had. {advice}") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ValueError(f"git has no fresh copy of {path}: {said[-1] if said else 'it gives no reason'}. {advice}")
    return done.stdout


def reset(path: Path) -> Path | None:
    """Replace a notebook by a fresh copy and keep the learner's beside it, under a name with date and time.

    The fresh copy is written first, under another name; then the learner's is renamed; then the fresh one gets its
    name. At every moment the learner's text is in one of the two files. After a stop in the middle, do it again.

    Args:
        path: the notebook; it may be missing.

    Returns:
        the file that holds the learner's text now, or None if there was nothing to keep.

    Raises:
        ValueError: if the name is not a notebook's, or no fresh copy can be had; nothing is changed then.
    """
    path, kept = Path(path).absolute(), None
    if path.suffix != ".ipynb":
        raise ValueError(f"{path.name} is no notebook: a name that ends in .ipynb is expected, such as 02_rope.ipynb.")
    fresh = committed(path)
    if path.is_file() and path.read_bytes() == fresh:
        return None
    descriptor, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(fresh)
            os.fsync(file.fileno())
        os.chmod(beside, 0o644)
        if os.path.lexists(path):
            kept = new_file(path)
            os.replace(path, kept)
        os.replace(beside, path)
    finally:
        Path(beside).unlink(missing_ok=True)
    return kept


def new_file(path):
    """An empty file beside `path` with a dated name that nothing had before, also twice in the same second."""
    when = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for count in range(1, 1000):
        kept = path.with_name(f"{path.stem}_kept_{when}{f'_{count}' if count > 1 else ''}{path.suffix}")
        try:
            kept.touch(exist_ok=False)
            return kept
        except FileExistsError:
            continue
    raise FileExistsError(f"{kept} and 998 more of that second are taken: wait a second.")


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.classroom.hand_out", description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("student", help="write a folder to hand out").add_argument("folder", type=Path)
    verbs.add_parser("reset", help="a fresh copy of a notebook; yours is kept").add_argument("notebook", type=Path)
    chosen = parser.parse_args(arguments)
    try:
        if chosen.verb == "student":
            print(f"{chosen.folder}: {len(student(chosen.folder))} notebooks without solutions, and what they need.")
            return
        kept = reset(chosen.notebook)
    except (OSError, ValueError) as error:
        sys.exit(f"{chosen.verb}: {error}")
    print(f"{chosen.notebook} is fresh.", f"What you wrote is in {kept.name}, beside it." if kept else "", sep=" ")
    if kept:
        print("Is it open in JupyterLab? Close its tab without saving, then open it again.")


if __name__ == "__main__":
    main()
