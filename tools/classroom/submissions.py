"""What is asked, and what of an answer is run: the course's exercises, the check that judges each function, and the
statements of a notebook that a function needs.
"""

import ast
import json
import re
import symtable
import warnings
from dataclasses import dataclass
from pathlib import Path

from IPython.core.inputtransformer2 import TransformerManager

from tools.classroom.hand_out import notebooks_of, without_solutions

LARGEST_CELL = 200_000  # characters of a cell that is read
OLD_NAMES = {  # notebooks that the course had before: where their exercises are now
    "06_train_and_generate": ("06_train", "07_generate"),
    "07_scaling_out": ("09_scaling_out",),
}


@dataclass(frozen=True)
class Assignment:
    """What the course asks for: the learner's function and the check that it is handed to."""

    notebook: str  # name without its ending: "01_rmsnorm"
    title: str  # "1. RMSNorm from memory"
    function: str
    check: str
    stub: str  # the definition that is handed out, as ast.dump writes it


@dataclass(frozen=True)
class Statement:
    """One statement at the top of a cell, and the names it is about."""

    cell: int  # counted from 1 among code cells
    node: ast.stmt
    binds: frozenset  # "*" where it cannot be said
    reads: frozenset  # names of the notebook, also inside functions
    touches: frozenset  # whose attribute or entry is set, or whose method is called

    def is_import(self):
        """Whether it binds modules and their names, which are not followed further."""
        return isinstance(self.node, ast.Import | ast.ImportFrom)


def read_statements(sources: list[str]) -> tuple[list[Statement], dict[int, str]]:
    """The statements of all cells in order, and {cell: what is wrong with it} of those that are not Python."""
    statements, faults = [], {}
    for cell, source in enumerate(sources, start=1):
        if len(source) > LARGEST_CELL:
            faults[cell] = f"it has {len(source):,} characters, more than {LARGEST_CELL:,}: split it"
            continue
        try:
            statements += [_statement(cell, node) for node in _parse(source).body]
        except Exception as error:  # whatever a cell does to ast, symtable or IPython
            faults[cell] = f"{type(error).__name__}: {str(error)[:150]}"
    return statements, faults


def _parse(source):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as an invalid escape: not the grader's business
        try:
            return ast.parse(source)
        except SyntaxError:  # perhaps a magic
            return ast.parse(TransformerManager().transform_cell(source))


def _statement(cell, node):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = symtable.symtable(ast.unparse(node), "cell", "exec")
    binds = {name.get_name() for name in table.get_symbols() if name.is_assigned() or name.is_imported()}
    reads = {name.get_name() for name in table.get_symbols() if name.is_referenced()}
    inner = table.get_children()
    while inner:
        table = inner.pop()
        reads |= {name.get_name() for name in table.get_symbols() if name.is_global() and name.is_referenced()}
        inner += table.get_children()
    if isinstance(node, ast.ImportFrom) and (node.module == "__future__" or node.names[0].name == "*"):
        binds = {"*"}
    return Statement(cell, node, frozenset(binds), frozenset(reads), frozenset(_touched(node)))


def _touched(node):
    """Names in `name.x = ...`, `name[i] = ...`, `del name[i]` and `name.method(...)` as a statement of its own."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return  # touches when it is called
    for one in (one for one in ast.walk(node) if isinstance(one, ast.stmt)):  # also inside for, if, with
        parts = getattr(one, "targets", None) or [getattr(one, "target", None) or getattr(one, "value", None)]
        for part in parts:
            inside = part
            while isinstance(inside, ast.Attribute | ast.Subscript | ast.Call):
                inside = inside.func if isinstance(inside, ast.Call) else inside.value
            if isinstance(inside, ast.Name) and inside is not part:
                yield inside.id


def read_course(folder: Path, only: list[str] | None = None) -> dict[str, tuple[list[Assignment], list[Statement]]]:
    """{notebook: (its exercises, the statements a learner may build on)}, from the course's own notebooks.

    Raises:
        ValueError: if a cell tagged "exercise" does not end in `check_...(function)`, or no notebook is left.
    """
    course, there = {}, []
    for path in notebooks_of(folder):
        notebook, title, exercises = json.loads(path.read_text(encoding="utf-8")), "", []
        for cell in notebook["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                title = (re.findall(r"^#+ Exercise (.+?) *$", source, re.M) or [title])[-1]
            elif "exercise" in cell["metadata"].get("tags", []):
                exercises.append(_exercise(path.stem, title.replace(":", ".", 1), source))
        there += [path.stem] * bool(exercises)
        if exercises and path.stem.startswith(tuple(only or [""])):
            cells = [cell for cell in without_solutions(notebook)["cells"] if cell["cell_type"] == "code"]
            statements, _ = read_statements(["".join(cell["source"]) for cell in cells])
            stubs = {exercise.function for exercise in exercises}
            course[path.stem] = exercises, [one for one in statements if not one.binds & stubs]
    missing = [name for name in only or [""] if not any(stem.startswith(name) for stem in course)]
    if missing:
        which, found = f"notebook {missing[0]}".strip(), ", ".join(there) or "none"
        raise ValueError(f"{folder} has no {which} with exercises; found: {found}. Give a name, or the start of one.")
    return course


def _exercise(notebook, title, source):
    match ast.parse(source).body:
        case [*above, ast.Expr(ast.Call(ast.Name(check), [ast.Name(function)], []))] if check.startswith("check_"):
            stubs = [node for node in above if isinstance(node, ast.FunctionDef) and node.name == function]
            if stubs:
                return Assignment(notebook, title, function, check, ast.dump(stubs[-1]))
    raise ValueError(f"{notebook}, exercise {title}: the cell must define the function and end in check_...(function).")


def code_for(function: str, own: list[Statement], course: list[Statement]) -> str | None:
    """The statements of a notebook that a function needs, as grade.py explains; None if no cell defines it."""
    homes = [one.cell for one in own if function in one.binds]
    if not homes:
        return None
    own = [one for one in own if one.cell <= homes[-1]]
    chosen, seen, todo = set(), set(), {function, "*"}
    while todo:
        name = todo.pop()
        seen.add(name)
        for first, pool in enumerate((course, own)):
            if name != "*" and first == 0 and any(name in one.binds for one in own):
                continue  # the learner's own goes before the course's
            found = [(first, place) for place, one in enumerate(pool) if name in one.binds]
            if found and not any(pool[place].is_import() for _, place in found):
                found += [(first, place) for place, one in enumerate(pool) if name in one.touches]
            chosen.update(found)
            todo |= {read for _, place in found for read in pool[place].reads} - seen
    nodes = [(course, own)[first][place].node for first, place in sorted(chosen)]
    nodes.sort(key=lambda node: getattr(node, "module", "") != "__future__")  # these must stand first
    return "\n".join(map(ast.unparse, nodes))
