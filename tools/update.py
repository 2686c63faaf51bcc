"""A newer version of the course under a learner's work: every answered function goes into the fresh notebook.

    python -m tools.update --from ../old      # make update FROM=../old: an older folder, or a notebook that reset kept

Run it in the newer folder; nothing in the older one is changed. Answers are read as the grader reads them
(checks/notebook.py). The cell of an answer comes as it is, and in front of it the learner's other cells that it needs;
only into an exercise that is still as it was handed out.

Exit status: 0 if every answer is in the notebooks, 1 if one is not; it is named.
"""

import argparse
import ast
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from nbformat.v4 import new_code_cell

from checks import notebook as reader
from tools import course
from tools.course import ROOT, UNREADABLE, notebooks_of, one_line


@dataclass
class Old:
    """An older notebook of a learner, and what became of its answers."""

    path: Path
    notebook: reader.Notebook
    asked: list[str]  # the functions that its exercises asked for
    came: list[str] = field(default_factory=list)  # functions that were put back
    left: list[str] = field(default_factory=list)  # those that were not, each with the reason

    def answer(self, name: str) -> reader.Statement | None:
        """The statement that defines a function, if it is no stub."""
        found = self.notebook.definition(name)
        return found if found and not reader.is_stub(found.node) else None

    def needs(self, name: str) -> set[str]:
        """The statements that an answer needs, imports apart, as `ast.dump` writes them."""
        parts = [part.node for part in self.notebook.parts(name, [])]
        return {ast.dump(node) for node in parts if not isinstance(node, ast.Import | ast.ImportFrom)}


def _exercises(cells):
    """(cell, function that it hands to a check) of each exercise of these cells, as they are stored."""
    texts = ["".join(cell.get("source", cell.get("input", ""))) for cell in cells]
    kinds = [cell["cell_type"] for cell in cells]
    solved = course.in_solutions(list(zip(kinds, texts, strict=True)))
    asked = [course.asks_for(text) if kind == "code" else "" for kind, text in zip(kinds, texts, strict=True)]
    return [(cell, name) for cell, name, inside in zip(cells, asked, solved, strict=True) if name and not inside]


def read_old(files: list[Path]) -> tuple[list[Old], list[str]]:
    """Older notebooks, those that were saved last first; and what is wrong with files that cannot be read."""
    old, broken = [], []
    for path in sorted(files, key=lambda path: (int(path.lstat().st_mtime), path.stem), reverse=True):
        try:
            data = path.read_bytes()
            asked = [name for _, name in _exercises(reader.stored_cells(data))]
            old.append(Old(path, reader.read_notebook(data), asked))
        except UNREADABLE as error:
            broken.append(f"{path}: cannot be read: {one_line(error, 80)}. Nothing is put back: mend it, or delete it.")
    return old, broken


def place(fresh: Path, old: list[Old]) -> list[str]:
    """Put answers of older notebooks into the open exercises of a fresh one; the functions that it asks for."""
    stored = json.loads(fresh.read_text(encoding="utf-8-sig"))
    exercises, came = _exercises(stored["cells"]), False
    for cell, name in exercises:
        now, there = Old(fresh, _read(stored["cells"]), []), [one for one in old if one.answer(name)]
        found = now.notebook.definition(name)
        if not (found and reader.is_stub(found.node)) or reader.more_than_a_stub("".join(cell["source"])):
            why = "its cell here is not empty any more"
        elif there:
            why = f"that of {there[0].path.name} was taken, the file that was saved last"
            if cells := _with_answer(stored["cells"], cell, there[0], name):
                stored["cells"], came = cells, True
                there[0].came.append(name)
                now = there[0]
            else:
                why = "what it needs does not fit in"
        for one in old:
            if one.answer(name) and (not now.answer(name) or one.needs(name) != now.needs(name)):
                one.left.append(f"{name} ({why})")
            elif not there and (fault := one.notebook.fault_of(name)):
                one.left.append(f"{name} ({one_line(fault, 80).rstrip('.')})")
    if came:
        course.write_beside(fresh, json.dumps(stored, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    return [name for _, name in exercises]


def _read(cells):
    return reader.read_cells(["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"])


def _with_answer(cells, stub, old, name):
    """The cells with an answer in the place of its stub, and in front of it what it needs; None if that fails.

    A check that the answer's cell has not comes behind it.
    """
    home, have, more = old.answer(name).cell, {ast.dump(one.node) for one in _read(cells).statements}, []
    parts = [part for part in old.notebook.parts(name, []) if part.cell != home and ast.dump(part.node) not in have]
    for number in dict.fromkeys(part.cell for part in parts):
        nodes = [part.node for part in parts if part.cell == number]
        imports = all(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes)  # of a cell that may be ours
        more.append("\n".join(map(ast.unparse, nodes)) if imports else old.notebook.cells[number - 1])
    text, at = old.notebook.cells[home - 1], cells.index(stub)
    answer = {**stub, "source": text.splitlines(keepends=True), "outputs": [], "execution_count": None}
    check = "\n".join(re.findall(r"^(?:from|import|check_).*", "".join(stub["source"]), re.M))
    behind = [new_code_cell(check)] if course.asks_for(text) != name else []
    made = [*cells[:at], *map(new_code_cell, more), answer, *behind, *cells[at + 1 :]]
    new = Old(old.path, _read(made), [])
    return made if new.answer(name) and old.needs(name) <= new.needs(name) else None


def update(root: Path, source: Path) -> bool:
    """Put the answers of an older folder or notebook into the notebooks below `root`; whether all are in.

    Raises:
        ValueError: if there is no notebook of the course to take answers from.
    """
    folder, ours = source / "notebooks" if (source / "notebooks").is_dir() else source, notebooks_of(root / "notebooks")
    files = [folder] * (".ipynb" in folder.name.lower())
    if folder.is_dir():
        files = sorted(path for path in folder.iterdir() if reader.ENDING.search(path.name))
    old, broken = read_old([path for path in files if path.resolve() not in {fresh.resolve() for fresh in ours}])
    asked = set()
    for fresh in ours if old else ():
        try:
            asked.update(place(fresh, old))
        except UNREADABLE as error:
            broken.append(f"{fresh}: cannot be read or written: {one_line(error, 80)}. Nothing is put into it.")
    print(*broken, sep="\n", end="\n" * bool(broken))
    for one in old:
        gone = [name for name in one.asked if name not in asked and one.answer(name)]
        one.left += [f"{name} (no exercise here asks for it)" for name in gone]
    if not broken and not any(one.asked or one.came or one.left for one in old):
        raise ValueError(f"{source}: neither a folder with notebooks of the course nor one of them.")
    for one in old:
        left = f"; not put back: {', '.join(one.left)}" if one.left else ""
        print(f"{', '.join(one.came) or 'nothing'} put back{left}. All that you wrote: {one.path}")
    return not broken and not any(one.left for one in old)


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
        sys.exit("Not every answer of yours is in the notebooks: see above.")
    print("Up to date.")


if __name__ == "__main__":
    main()
