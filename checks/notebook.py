"""The one reader of notebooks: it takes a learner's function out of a notebook, with what the function needs.

A notebook is read, not run, and not from top to bottom: of its code cells come the last definition of the function,
and every statement up to the end of that cell that binds a name it reads, or changes what the name stands for, and so
on: imports, helper functions, constants, in whatever cell they stand. `table["a"] = 1` changes `table`; so do `up =
table; up[0] = 1`, `fill(table)` and `@term`, if a function `fill` or `term` of the notebook changes it. Names that the
notebook does not bind may be taken from the course's own. All else is left out: other exercises, prints, experiments,
magics, and the learner's checks, edited or not. A name that is bound by a magic, by `exec` or through `globals()` is
not seen.

`my_parts` reads the learner's notebooks with this file, `make notebooks` the course's. The grader loads the file inside
its walls, since a notebook may be made to keep a reader busy for ever: it needs no other file of ours.
"""

import ast
import io
import json
import re
import symtable
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

LARGEST_CELL = 200_000  # characters of a cell that is read
RUN_THEIR_CELL = ("time", "capture", "prun")  # magics of a cell that is run as it stands; %%timeit keeps no names
DEFINES = (
    r"(?:(?:async\s+)?def\s+{0}\b|{0}\s*(?::[^=\n]*)?=(?!=))"  # text that makes a function, where it is not Python
)


FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
SURELY_BINDS = FUNCTION | ast.ClassDef | ast.Assign | ast.With
LOOPS = ast.For | ast.With


@dataclass(frozen=True)
class Statement:
    """One statement at the top of a cell, and the names it is about."""

    cell: int  # counted from 1 among code cells
    node: ast.stmt  # its line counts from the first line of the first code cell
    binds: frozenset  # "*" where it cannot be said
    reads: frozenset  # names of the notebook, also inside functions
    touches: frozenset  # whose attribute or entry is set, or whose method is called; of a function, when it is called
    views: frozenset  # (b, a) for b = a and b = a.T, a[0] ...
    calls: frozenset  # (function, what is handed to it, or "")


@dataclass
class Notebook:
    """The statements of a notebook's code cells."""

    cells: list[str]
    statements: list[Statement] = field(default_factory=list)
    faults: dict[int, str] = field(default_factory=dict)  # what is wrong with a cell that is not Python

    def definition(self, function: str) -> Statement | None:
        """The last statement that binds a function."""
        return next((one for one in reversed(self.statements) if function in one.binds), None)

    def fault_of(self, function: str) -> str:
        """Why a cell that defines a function cannot be read, in words; empty if there is none."""
        defines = re.compile(rf"^[ \t]*+(?:(?:>>>|\.\.\.|%\w++)[ \t]*+)?{DEFINES.format(function)}", re.M)
        for cell, fault in self.faults.items():
            if defines.search(self.cells[cell - 1]):
                return f"Code cell {cell} is not Python: {fault}."
        return ""

    def needs(self, function: str, course: list[Statement]) -> list[ast.stmt] | None:
        """The statements that a function needs, in order; None if no cell defines it.

        Args:
            course: statements for names that the notebook does not bind.
        """
        found = self.parts(function, course)
        return found and [one.node for one in found]

    def parts(self, function: str, course: list[Statement]) -> list[Statement] | None:
        """What `needs` returns, with the cell of each."""
        home = self.definition(function)
        if not home:
            return None
        own = [one for one in self.statements if one.cell <= home.cell]
        functions = {one.node.name: one for one in self.statements if isinstance(one.node, FUNCTION)}
        chosen, seen, todo = set(), set(), {function, "*"}
        while todo:
            name = todo.pop()
            seen.add(name)
            for first, pool in enumerate((course, own)):
                if name != "*" and first == 0 and any(name in one.binds for one in own):
                    continue  # the learner's own goes before the course's
                found = [(first, place) for place, one in enumerate(pool) if name in one.binds]
                sure = [place for _, place in found if isinstance(pool[place].node, SURELY_BINDS)]
                loops = {(first, place) for place in range(max(sure, default=0)) if isinstance(pool[place].node, LOOPS)}
                found = [place for place in found if place not in loops]  # whose name is bound anew below
                # modules and their names are not followed further
                if found and not any(isinstance(pool[place].node, ast.Import | ast.ImportFrom) for _, place in found):
                    names = {name}
                    while more := {view for one in pool for view, of in one.views if of in names} - names:
                        names |= more
                    found += [(first, place) for place, one in enumerate(pool) if _changes(one, names, functions)]
                chosen.update(found)
                todo |= {read for _, place in found for read in pool[place].reads} - seen
        found = [(course, own)[first][place] for first, place in sorted(chosen)]
        return sorted(found, key=lambda one: getattr(one.node, "module", "") != "__future__")  # these must stand first


def read_notebook(data: bytes) -> Notebook:
    """A notebook of any format, as it is stored.

    Raises:
        ValueError, KeyError, TypeError, AttributeError or RecursionError: if it is no notebook.
    """
    cells = [cell for cell in stored_cells(data) if cell["cell_type"] == "code"]
    sources = [cell["source"] if "source" in cell else cell["input"] for cell in cells]
    return read_cells(["".join(source) for source in sources])


def stored_cells(data: bytes) -> list[dict]:
    """The cells of a notebook as they are stored, of the format that it names; for errors see `read_notebook`."""
    stored = json.loads(data.decode("utf-8-sig"))
    if "worksheets" in stored and (stored.get("nbformat", 4) < 4 or "cells" not in stored):  # as Jupyter shows it
        return [cell for sheet in stored["worksheets"] for cell in sheet["cells"]]
    return stored["cells"]


def read_cells(cells: list[str]) -> Notebook:
    """The notebook that these code cells make."""
    notebook, first = Notebook([re.sub(r"\r\n?", "\n", cell) for cell in cells]), 0
    for number, source in enumerate(notebook.cells, start=1):
        try:
            notebook.statements += _statements(number, source, first)
        except Exception as error:  # whatever a cell does to ast or symtable
            notebook.faults[number] = f"{type(error).__name__}: {str(error)[:150]}"
        first += source.count("\n") + 1
    return notebook


def _statements(cell, source, first):
    """The statements of a cell; `first` is the number of lines above it."""
    if len(source) > LARGEST_CELL:
        raise ValueError(f"it has {len(source):,} characters, more than {LARGEST_CELL:,}: split it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as an invalid escape: not the reader's business
        try:
            body = ast.parse(source).body
        except SyntaxError as error:
            body = _body(source, error)
        return [_statement(cell, node, first) for node in body]


def _body(source, error):
    """What a cell that is not plain Python is for IPython: with magics, or pasted with the prompts of a session."""
    for text in dict.fromkeys((source, without_prompts(source))):
        try:
            return ast.parse(without_magics(text)).body
        except SyntaxError as one:
            error = one if text is source else error
    raise error


def is_stub(node: ast.stmt) -> bool:
    """Whether this is a function as it is handed out: one `raise NotImplementedError`, and perhaps a docstring."""
    match node:
        case ast.FunctionDef(body=[ast.Expr(ast.Constant(str())), last] | [last], decorator_list=[]):
            match last:
                case ast.Raise(
                    ast.Name("NotImplementedError") | ast.Call(ast.Name("NotImplementedError"), [], []), None
                ):
                    return True
                case ast.Raise(ast.Call(ast.Name("NotImplementedError"), [ast.Constant()], []), None):
                    return True
    return False


def _changes(one, names, functions):
    """Whether a statement changes what one of these names stands for, itself or by calling a function."""
    for called, given in one.calls:
        if not called and given in names:
            return True
        if function := functions.get(called):
            own = {argument.arg for argument in ast.walk(function.node.args) if isinstance(argument, ast.arg)}
            if names & function.touches & function.reads or (given in names and own & function.touches):
                return True
    return bool(names & one.touches) and not isinstance(one.node, FUNCTION)


def _statement(cell, node, first):
    table = symtable.symtable(ast.unparse(node), "cell", "exec")
    binds = {name.get_name() for name in table.get_symbols() if name.is_assigned() or name.is_imported()}
    if isinstance(node, ast.Delete):
        binds = set()
    reads = {name.get_name() for name in table.get_symbols() if name.is_referenced()}
    inner = table.get_children()
    while inner:
        table = inner.pop()
        reads |= {name.get_name() for name in table.get_symbols() if name.is_global()}
        inner += table.get_children()
    if isinstance(node, ast.ImportFrom) and (node.module == "__future__" or node.names[0].name == "*"):
        binds = {"*"}
    if isinstance(node, ast.For):  # its own names are bound before they are read
        reads -= _names(node.target) - _names(node.iter)
    found = frozenset(_touched(node)), frozenset(_views(node)), frozenset(_calls(node))
    return Statement(cell, ast.increment_lineno(node, first), frozenset(binds), frozenset(reads), *found)


def _names(node):
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _root(node):
    """The name `a`, of `a`, `a.b`, `a[0]` and `a.b()`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return getattr(node, "id", "")


def _views(node):
    """Pairs (b, a) for `b = a`, `b = a.T`, `b = a[0]`, `b, c = a, a`, and for `for b in (a, a)`."""
    for one in ast.walk(node):
        if isinstance(one, ast.Assign | ast.AnnAssign | ast.For | ast.NamedExpr):
            value = one.iter if isinstance(one, ast.For) else one.value
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
            made = [target for target in (one.targets if isinstance(one, ast.Assign) else [one.target])]
            for value in values:
                if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name)):
                    yield from ((name, _root(value)) for target in made for name in _names(target))


def _calls(node):
    """Pairs (function, a name that is handed to it, or "") of what runs with the statement; ("", a) for `@a.method`."""
    todo = [node]
    while todo:
        one = todo.pop()
        if isinstance(one, FUNCTION | ast.ClassDef):
            for decorator in one.decorator_list:
                maker = decorator.func if isinstance(decorator, ast.Call) else decorator
                yield ("", _root(maker)) if isinstance(maker, ast.Attribute) else (_root(maker), one.name)
            continue
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name):
            given = [*one.args, *(word.value for word in one.keywords)]
            yield from ((one.func.id, name) for name in {"", *map(_root, given)})
        todo += ast.iter_child_nodes(one)


def _touched(node):
    """Names that a statement changes in place.

    In `name.x = ...`, `name[i] = ...`, `del name[i]`, `name.method(...)` as a statement of its own; and, wherever they
    are called, in `name.method_(...)`, `method_(name, ...)`, `setattr(name, ...)` and `function(..., out=name)`.
    """
    if isinstance(node, ast.ClassDef):
        return  # touches when it is called
    for one in ast.walk(node):  # also inside for, if, with
        parts, given = [], []
        if isinstance(one, ast.stmt):
            parts = [*getattr(one, "targets", [getattr(one, "target", None) or getattr(one, "value", None)])]
        elif isinstance(one, ast.Call):
            given = [word.value for word in one.keywords if word.arg == "out"]
            called = getattr(one.func, "attr", getattr(one.func, "id", ""))
            if called == "setattr" or re.search("[^_]_$", called):
                parts, given = [one.func], given + one.args[:1]
        for part in parts:  # grows
            parts += part.elts if isinstance(part, ast.Tuple | ast.List) else ()
        for part in parts + given:
            if not isinstance(part, ast.Name) or part in given:
                yield _root(part)


def more_than_a_stub(source: str) -> str:
    """What an exercise's cell holds that is no stub, import or check, such as a comment; empty if there is nothing.

    An import under a stub's name makes the function, and counts.
    """
    try:
        nodes, tokens = ast.parse(source).body, list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (SyntaxError, tokenize.TokenError):
        return source
    stubs = {node.name for node in nodes if is_stub(node)}
    for node in nodes:
        match node:
            case ast.Import() | ast.ImportFrom() if not stubs & {one.asname or one.name for one in node.names}:
                continue
            case ast.Expr(ast.Call(ast.Name(), [ast.Name()], [])):
                continue
        if not is_stub(node) or re.search(r"^\s*return\b", ast.get_docstring(node) or "", re.M):
            return ast.unparse(node)
    return next((token.string for token in tokens if token.type == tokenize.COMMENT), "")


# ------------------------------------------------------------------------------------------------ IPython's magics

PIECE = re.compile(  # of Python: a text, a comment, a bracket, the end of a line; every place fits one of them
    r"""'{3}(?:\\.|[^\\])*?(?:'{3}|\Z)|"{3}(?:\\.|[^\\])*?(?:"{3}|\Z)|'(?:\\.|[^'\\\n])*'?|"(?:\\.|[^"\\\n])*"?"""
    r"""|\#[^\n]*|\\\n|[\[({]|[\])}]|\n|[^'"\#\\\[({\])}\n]+|.""",
    re.S,
)
MAGIC = re.compile(  # a line: "%time f()", "!ls", "?f", ",f x", "y = f?" or "x = !ls"
    r"""([ \t]*)(?:(\w(?:\['\w*'\]|\["\w*"\]|[^\n='"\#])*+=[ \t]*)(?=%\w|!)"""
    r"""|(?=[%!?,;/]|[^\n?'"\#]*[\w*\]]\?\??[ \t]*(?:\n|\Z)))(?:[^\n]*\\\n)*[^\n]*"""
)
KEEPS_NAMES = re.compile(r"%(?:time|prun)[ \t]+(.*)", re.S)  # a line that runs the rest of it, if that is Python
PROMPT = re.compile(r"^[ \t]*+(?:In \[\d++\]:|\.{3,}+:|>>>|\.\.\.)[ \t]?", re.M)


def without_prompts(source: str) -> str:
    """A cell without the prompts of a Python or IPython session that was pasted, line for line, as IPython runs it."""
    return PROMPT.sub("", source) if re.search(r"^[ \t]*+(?:>>>|In \[)", source, re.M) else source


def without_magics(source: str) -> str:
    """A cell's Python, line for line: `pass` or `None` in the place of magics, shell commands and questions.

    It reads every letter once. IPython's own way reads the cell again for each magic.
    """
    if whole := re.match(r"\s*%%(\w+)[^\n]*", source):
        if whole[1] not in RUN_THEIR_CELL:  # of another language, or run elsewhere
            raise SyntaxError(f"it begins with %%{whole[1][:20]}, which does not run it here")
        source = "\n" * whole[0].count("\n") + source[whole.end() :]
    return "".join(_plain_lines(without_indent(source)))


def without_indent(source: str) -> str:
    """A cell without the indent of its first line."""
    indent = re.match(r"(?:[ \t]*\n)*([ \t]+)\S", source)
    return re.sub(rf"^{indent[1]}", "", source, flags=re.M) if indent else source


def _plain_lines(source) -> Iterator[str]:
    place, depth, starts = 0, 0, True
    while place < len(source):
        magic = MAGIC.match(source, place) if starts and not depth else None
        if magic:
            runs = KEEPS_NAMES.match(magic[0])
            if runs and _is_python(runs[1]):
                yield runs[1]
            else:
                yield magic[1] + (f"{magic[2]}None" if magic[2] else "pass") + "\n" * magic[0].count("\n")
            place, starts = magic.end(), False
            continue
        piece = PIECE.match(source, place)[0]
        depth = max(0, depth + (piece in "([{") - (piece in ")]}"))
        place, starts = place + len(piece), piece == "\n"
        yield piece


def _is_python(text):
    try:
        return bool(ast.parse(text))
    except Exception:  # whatever it does to ast
        return False
