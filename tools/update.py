"""A newer version of the course under a learner's work: every answered function goes into the fresh notebook.

    python -m tools.update                       # make update: in a clone; fetches what is new
    python -m tools.update --from ../old         # make update FROM=../old: from an older folder, or a kept notebook

What a learner changed is first copied beside itself, under a name with date and time, and stays there. After a stop at
any moment the work is in the notebook or in that copy; `make update FROM=` the copy then puts the answers back.
"""

import argparse
import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from checks.notebook import read_cells, stored_cells
from tools.course import ROOT, new_file, notebooks_of, write_beside

UNANSWERED = "raise NotImplementedError"


def git(root: Path, *words: str) -> str:
    """What git prints.

    Raises:
        ValueError: with git's last line, if it refuses or is missing.
    """
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ValueError(
            "git is not installed. Get the newer folder, and in it: make update FROM=this folder"
        ) from error
    if done.returncode:
        raise ValueError(
            f"git {words[0]}: {(done.stderr.strip().splitlines() or ['it gives no reason'])[-1]}. Nothing was changed."
        )
    return done.stdout


def fetch(root: Path) -> list[Path]:
    """Bring a clone to the newest version.

    Returns:
        the copies of the files that the learner had changed.

    Raises:
        ValueError: if nothing can be fetched or merged; every file is then as it was.
    """
    git(root, "fetch", "--quiet")
    newest = git(root, "rev-parse", "@{upstream}").strip()
    if git(root, "merge-base", "HEAD", newest).strip() != git(root, "rev-parse", "HEAD").strip():
        raise ValueError("this clone has commits of its own: merge them yourself (git pull); nothing was changed.")
    if git(root, "rev-list", f"HEAD..{newest}") == "":
        return []
    changed = git(root, "diff", "--name-only", "--no-renames", "--relative", "-z", "HEAD").split("\0")[:-1]
    kept = {path: new_file(path) for path in (root / name for name in changed) if path.is_file()}
    for path, copy in kept.items():
        shutil.copy2(path, copy)
        print(f"{path.relative_to(root)}: yours is kept in {copy.relative_to(root)}", flush=True)
    try:
        if changed:
            git(root, "checkout", "--quiet", "HEAD", "--", *changed)
        git(root, "merge", "--quiet", "--ff-only", newest)
    except (ValueError, KeyboardInterrupt):
        for path, copy in kept.items():
            copy.replace(path)
        raise
    return list(kept.values())


def answers(path: Path) -> dict[str, str]:
    """The cells in which a learner's notebook defines `my_` functions, solutions apart: the last of each, by name."""
    found, solutions = {}, False
    for cell in stored_cells(path.read_bytes()):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown" and re.match("##? ", source):
            solutions = source.startswith("## Solutions")
        elif cell["cell_type"] == "code" and not solutions:
            found |= dict.fromkeys(re.findall(r"^def (my_\w+)", source, re.M), source)
    return found


def place(old: Path, fresh: Path) -> str:
    """Put the answers of an old notebook into the exercises of a fresh one that are not answered yet.

    Returns:
        what was put back and what was not, in words.
    """
    theirs, notebook = answers(old), json.loads(fresh.read_text(encoding="utf-8"))
    placed, left = [], []
    for cell in notebook["cells"]:
        if "exercise" not in cell["metadata"].get("tags", []):
            continue
        stub = "".join(cell["source"])
        name = re.findall(r"^def (my_\w+)", stub, re.M)[-1]
        answer = theirs.pop(name, stub)
        if UNANSWERED in answer or read_cells([answer]).faults:
            left += [f"{name} (not finished)"] * (_steps(answer) != _steps(stub))
        elif UNANSWERED not in stub:
            left += [f"{name} (there is an answer already)"] * (answer != stub)
        else:
            cell["source"] = _with_check(answer, stub).splitlines(keepends=True)
            cell["outputs"], cell["execution_count"] = [], None
            placed.append(name)
    left += [f"{name} (no exercise any more)" for name, answer in theirs.items() if UNANSWERED not in answer]
    if placed:
        write_beside(fresh, json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    not_placed = f"; not put back: {', '.join(left)}" if left else ""
    return f"{fresh.name}: {', '.join(placed) or 'nothing'} put back{not_placed}. All that you wrote: {old}"


def _steps(source):
    """The lines of a cell without comments, docstrings and imports; they differ where somebody has begun."""
    try:
        bodies = [node.body for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    except SyntaxError:
        return source
    return [ast.unparse(node) for body in bodies for node in body if not isinstance(node, ast.Expr)]


def _with_check(answer, stub):
    """A learner's cell with the imports and the check of the fresh one."""
    imports = [line for line in stub.splitlines() if re.match("from |import ", line) and line not in answer]
    lines = [line for line in answer.splitlines() if not re.match(r"check_\w+\(.*\)\s*$", line)]
    return "\n".join([*imports, *lines]).rstrip() + "\n\n\n" + stub.splitlines()[-1]


def update(root: Path, source: Path | None) -> None:
    """Bring what is new, or take a folder or notebook, and put its answers into the notebooks here.

    Raises:
        ValueError: if nothing new can be had, or there is no notebook of the course to take answers from.
    """
    folder = source / "notebooks" if source and (source / "notebooks").is_dir() else source
    old = fetch(root) if not source else sorted(folder.glob("*.ipynb")) if folder.is_dir() else [folder]
    here = {path.stem: path for path in notebooks_of(root / "notebooks")}
    pairs = [(path, here[name]) for path in old for name in here if re.fullmatch(rf"{name}(_kept_.*)?", path.stem)
             and path.resolve() != here[name].resolve()]  # fmt: skip
    if source and not pairs:
        raise ValueError(f"{source}: neither a folder with notebooks of the course nor one of them.")
    for path, fresh in pairs:
        print(place(path, fresh))


def main(arguments: list[str] | None = None) -> None:
    """Update, and say in a sentence what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.update", description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, help="an older folder, or a notebook that was kept")
    try:
        update(ROOT, parser.parse_args(arguments).source)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"update: {error}")
    print("Up to date. Is a notebook open in JupyterLab? Close its tab without saving, then open it again.")


if __name__ == "__main__":
    main()
