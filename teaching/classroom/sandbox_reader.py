"""What the grader reads of a notebook that was handed in; a program that runs inside the sandbox.

A notebook may be made to keep a reader busy for ever, so nothing of it is taken apart in the grader's own process. The
program needs one other file, checks/notebook.py, the one reader of notebooks, whose path is its only argument.
"""

import ast
import importlib.util
import json
import re
import sys

MOST_LINES = 60  # of a learner's cell that are shown
NO_NOTEBOOK = (ValueError, KeyError, TypeError, AttributeError, RecursionError)  # what reading such a file raises
NAMED = re.compile(r"line (\d+)\)?$")  # at the end of a SyntaxError's text


def answers(reader, data: bytes, asked: list[tuple[str, str]], course: list[str]) -> list[dict]:
    """For each exercise the fields of teaching.classroom.submissions.Answer; no status if the code is to be run.

    Args:
        reader: the module checks/notebook.py.
        data: the notebook.
        asked: function of each exercise, and its stub as `ast.dump` writes it.
        course: code cells that the learner may build on.
    """
    try:
        notebook = reader.read_notebook(data)
        stubs = {function for function, _ in asked}
        lent = [one for one in reader.read_cells(course).statements if not one.binds & stubs]
        return [_answer(reader, notebook, function, stub, lent) for function, stub in asked]
    except NO_NOTEBOOK as error:
        seen = f"It is no notebook ({type(error).__name__}: {str(error)[:150]})."
        return [{"status": "broken notebook", "seen": seen} for _ in asked]


def _answer(reader, notebook, function, stub, lent):
    found, fault = notebook.definition(function), notebook.fault_of(function)
    attempted = found is not None and ast.dump(found.node) != stub
    if fault == reader.IS_TEXT:
        return {"status": "does not run", "seen": fault}
    if fault and not attempted:
        number, line = int(re.search(r"\d+", fault)[0]), NAMED.search(fault.rstrip("."))
        seen = re.sub(r"^Code cell \d+", "The cell", fault).replace("<unknown>, ", "")
        shown = _shown(notebook.cells[number - 1].split("\n"), int(line[1]) if line else 0)
        return {"status": "does not run", "seen": seen, **shown}
    if not found:
        return {"status": "no such function", "seen": f"No cell defines {function}."}
    if not attempted:
        return {"status": "not attempted"}
    code = "\n".join(map(ast.unparse, notebook.needs(function, lent)))
    first = min([found.node.lineno, *(one.lineno for one in getattr(found.node, "decorator_list", ()))])
    lines = "\n".join(notebook.cells).split("\n")[first - 1 : found.node.end_lineno]  # counted through all cells
    return {"code": code, "reaches": reaches(code), **_shown(lines, 0)}


USUAL = {"torch", "math", "numpy", "helpers", "explorers", "beyond", "checks", "transformers", "matplotlib"}
USUAL |= {"functools", "itertools", "collections", "dataclasses", "typing", "__future__"}  # modules that answers import
MODULES = {"sys", "os", "gc", "inspect", "threading", "importlib", "ctypes", "json", "builtins"}  # also as torch.sys
CALLS = {"getattr", "setattr", "delattr", "globals", "locals", "vars", "eval", "exec", "compile", "open", "get_ipython"}
INNER = re.compile(r"(?!__init__$)__\w+__|(?:f|tb|gi|cr|ag)_\w+|_getframe|_current_frames|currentframe")


def reaches(code: str) -> list[str]:
    """What an answer has no need of, and a program that deceives its check has: names, imports, attributes it sets.

    Such a list can be got round: it shows what somebody tried, and that it is empty proves nothing.
    """
    found, modules, nodes = set(), set(), list(ast.walk(ast.parse(code)))
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            named = {one.name for one in node.names}
            modules |= {(one.asname or one.name).partition(".")[0] for one in node.names}
            paths = named if isinstance(node, ast.Import) else {node.module or "."}
            found |= {path for path in paths if path.partition(".")[0] not in USUAL} | named & MODULES
        elif isinstance(node, ast.Name) and node.id in MODULES | CALLS:
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and (node.attr in MODULES or INNER.fullmatch(node.attr)):
            found.add(node.attr)
    for node in nodes:
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in modules:
                found.add(f"{ast.unparse(node)} = ...")
    return sorted(found)


def _shown(lines, named):
    """The lines of a cell that are shown, and which of them is the named one; all of a short cell."""
    start = max(0, named - MOST_LINES // 2) if len(lines) > MOST_LINES else 0
    left = len(lines) - start - MOST_LINES
    shown = [line[:200] for line in lines[start : start + MOST_LINES]] + [f"… {left} more lines"] * (left > 0)
    return {"own": "\n".join(shown), "line": named and named - start}


if __name__ == "__main__":
    spec = importlib.util.spec_from_file_location("notebook_reader", sys.argv[1])  # alone: its package imports torch
    sys.modules["notebook_reader"] = notebook_reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebook_reader)
    question, _, stored = sys.stdin.buffer.read().partition(b"\n")
    print(json.dumps(answers(notebook_reader, stored, *json.loads(question))))
