"""A newer version of the course under a learner's work: every answered function goes into the fresh notebook.

    python -m tools.update --from ../old      # make update FROM=../old: an older folder, or a notebook that reset kept

Run it in the newer folder; nothing in the older one is changed. Answers are read as the grader reads them
(checks/notebook.py). The cell of an answer comes as it is, and in front of it the learner's other cells that it needs;
only into an exercise that is still as it was handed out. Of several answers that of the file saved last is taken. In
the end every answer of the older files is looked for in these notebooks, and named if it is not in one of them.

Exit status: 0 if every answer is in the notebooks, 1 if one is not.
"""

import argparse
import ast
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from nbformat.v4 import new_code_cell

from checks import notebook as reader
from tools import course
from tools.course import ROOT, UNREADABLE, notebooks_of, one_line


@dataclass(frozen=True)
class Work:
    """A notebook that could be read, and the functions that its exercises ask for."""

    path: Path
    notebook: reader.Notebook
    asked: list[str]


OURS = rb"(?:(?<![\w.])|(?<=\\n))helpers"  # behind a line's end, as a notebook's file has it, or behind no letter
MOVED = {  # in the order in which they are replaced
    OURS + rb"\.experiments\.colleague\b": b"explorers.leaky",
    OURS + rb"\.experiments\.circuit\b": b"explorers.circuit",
    OURS + rb"\.(explorers|checks)\b": rb"\1", OURS + rb"\.(families|fast_decode|parallel)\b": rb"beyond.\1",
    rb"from helpers import (explorers|checks)\b": rb"import \1",
    rb"from helpers import (families|fast_decode|parallel)\b": rb"from beyond import \1",
    rb"(leaky import )Colleague(?= as )": rb"\1LeakyLlama",
    rb"(leaky import )Colleague\b": rb"\1LeakyLlama as Colleague",
}  # fmt: skip


def read(files: list[Path], is_old: bool = False) -> list[Work]:
    """Those of the files that are notebooks; of an older version with the names that modules have now.

    What is wrong with the other files is printed.
    """
    found = []
    for path in files:
        try:
            data = path.read_bytes()
            for before, now in MOVED.items() if is_old else ():
                data = re.sub(before, now, data)
            asked = [name for _, name in exercises(reader.stored_cells(data))]
            found.append(Work(path, reader.read_notebook(data), asked))
        except UNREADABLE as error:
            print(f"{path}: cannot be read, and is left out: {one_line(error, 100)}.")
    return found


def exercises(cells: list[dict]) -> list[tuple[dict, str]]:
    """(cell, function that it hands to a check) of each exercise of these cells."""
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    marked = zip(cells, texts, course.in_solutions(texts), strict=True)
    found = [(cell, course.asks_for(text)) for cell, (kind, text), solved in marked if kind == "code" and not solved]
    return [(cell, name) for cell, name in found if name]


def answer(notebook: reader.Notebook, name: str) -> reader.Statement | None:
    """The statement that defines a function, if it is no stub."""
    found = notebook.definition(name)
    return found if found and not reader.is_stub(found.node) else None


def is_in(new: reader.Notebook, old: reader.Notebook, name: str) -> bool:
    """Whether both have the same answer, with the same statements that it needs; imports may differ."""

    def needs(notebook):
        nodes = [part.node for part in notebook.parts(name, [])]
        return {ast.dump(node) for node in nodes if not isinstance(node, ast.Import | ast.ImportFrom)}

    return bool(answer(new, name) and answer(old, name)) and needs(new) == needs(old)


def place(fresh: Path, old: list[Work]) -> None:
    """Put answers of older notebooks, the one to prefer first, into the open exercises of a fresh one."""
    stored = json.loads(fresh.read_text(encoding="utf-8-sig"))
    cells = stored["cells"]
    for stub, name in exercises(cells):
        found = (now := _read(cells)).definition(name)
        is_open = found and reader.is_stub(found.node) and not reader.more_than_a_stub("".join(stub["source"]))
        source = next((one.notebook for one in old if answer(one.notebook, name)), None)
        if is_open and source and is_in(_read(made := _with_answer(cells, now, stub, source, name)), source, name):
            cells = made
    if cells is not stored["cells"]:
        text = json.dumps(stored | {"cells": cells}, indent=1, ensure_ascii=False, sort_keys=True)
        course.write_beside(fresh, text + "\n")


def _read(cells):
    return reader.read_cells(["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"])


def _with_answer(cells, now, stub, old, name):
    """The cells with an answer in the place of its stub; in front of it what it needs, behind it the check it lacks."""
    home, have, more = answer(old, name).cell, {ast.dump(one.node) for one in now.statements}, []
    parts = [part for part in old.parts(name, []) if part.cell != home and ast.dump(part.node) not in have]
    for number in dict.fromkeys(part.cell for part in parts):
        nodes = [part.node for part in parts if part.cell == number]
        imports = all(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes)  # of a cell that may be ours
        more.append("\n".join(map(ast.unparse, nodes)) if imports else old.cells[number - 1])
    text, at = old.cells[home - 1], cells.index(stub)
    mine = {**stub, "source": text.splitlines(keepends=True), "outputs": [], "execution_count": None}
    check = "\n".join(re.findall(r"^(?:from|import|check_).*", "".join(stub["source"]), re.M))
    behind = [new_code_cell(check)] if course.asks_for(text) != name else []
    return [*cells[:at], *map(new_code_cell, more), mine, *behind, *cells[at + 1 :]]


def _why_not(name, new):
    fresh = next((one.notebook for one in new if name in one.asked), None)
    if not fresh:
        return "no notebook here that can be read asks for it"
    return "the exercise holds another answer" if answer(fresh, name) else "a cell here changes what it needs"


def update(root: Path, source: Path) -> bool:
    """Put the answers of an older folder or notebook into the notebooks below `root`; whether all are in.

    Raises:
        ValueError: if there is no notebook of the course to take answers from.
    """
    folder, ours = source / "notebooks" if (source / "notebooks").is_dir() else source, notebooks_of(root / "notebooks")
    files = [path for path in (folder.iterdir() if folder.is_dir() else [folder]) if reader.ENDING.search(path.name)]
    files = [path for path in files if path.resolve() not in {fresh.resolve() for fresh in ours}]
    old = read(sorted(files, key=lambda path: (path.lstat().st_mtime, path.name), reverse=True), is_old=True)
    before = read(ours)
    readable = [one.path for one in before]
    whole, is_course = len(old + readable) == len(files + ours), False
    for fresh in readable:
        try:
            place(fresh, old)
        except UNREADABLE as error:
            print(f"{fresh}: cannot be written: {one_line(error, 80)}. Nothing is put into it.")
    new = read(readable)
    asked = [name for one in new for name in one.asked]
    for one in old:
        faults = {name: one.notebook.fault_of(name) for name in [*asked, *one.asked]}
        mine = [name for name, fault in faults.items() if fault or answer(one.notebook, name)]
        there = [name for name in mine if any(is_in(fresh.notebook, one.notebook, name) for fresh in before)]
        came = [name for name in mine if any(is_in(fresh.notebook, one.notebook, name) for fresh in new)]
        left = [f"{name} ({faults[name] or _why_not(name, new)})" for name in mine if name not in came]
        said = {"put back": [name for name in came if name not in there], "there already": there}
        said = [f"{', '.join(names)} {what}" for what, names in said.items() if names]
        said += [f"not put back: {', '.join(left)}"] if left else []
        if said:
            print(f"{'; '.join(said)}. All that you wrote: {one.path}")
        whole, is_course = whole and not left, is_course or bool(one.asked or mine)
    if whole and not is_course:
        raise ValueError(f"{source}: neither a folder with notebooks of the course nor one of them.")
    return whole


def main(arguments: list[str] | None = None) -> None:
    """Update, and say in a sentence what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.update", description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, required=True, help="an older folder, or a kept notebook")
    try:
        whole = update(ROOT, parser.parse_args(arguments).source)
    except UNREADABLE as error:
        sys.exit(f"update: {error}")
    print("Is a notebook open in JupyterLab? Close its tab without saving, then open it again.")
    if not whole:
        sys.exit("Not every answer of yours is in the notebooks: see above. An exercise takes one, while it is empty.")
    print("Up to date.")


if __name__ == "__main__":
    main()
