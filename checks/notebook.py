"""The one reader of notebooks: it takes a learner's function out of a notebook, with what the function needs.

A notebook is read, not run, and not from top to bottom: of its code cells come the last definition of the function that
is no stub, because a tool may append a fresh copy of all cells below an answer, and every statement up to the end of
that cell that binds a name it reads, or changes what the name stands for, and so on: imports, helper functions,
constants, in whatever cell they stand. Of what binds a name above, the last that surely does counts. `table["a"] = 1`
changes `table`; so do `up = table; up += 1`, and `fill(table)` and `@term`, if a function of the notebook changes it. A
definition that fails when it is run leaves the one above it, as in a kernel. Names that the notebook does not bind may
be taken from the course's own. All else is left out: other exercises, prints, experiments, magics, and the learner's
checks, edited or not. What is bound by a magic, by `exec` or through `globals()` is not seen, nor what is changed by an
object made of the table, such as an optimizer or `partial(fill, table)` called without a name, or by a function that is
handed over, but to `map`, `filter` or `reduce`.

`my_parts` reads the learner's notebooks with this file, `make notebooks` the course's. The grader loads the file inside
its walls, since a notebook may be made to keep a reader busy for ever: it needs no other file of ours.
"""

import ast
import contextlib
import functools
import io
import json
import re
import symtable
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

ENDING = re.compile(r"\.ipynb(?:\.txt|\.json)?$", re.I)  # of a notebook's name: mail and some browsers add one
BROKEN = {  # what a file is that JupyterLab cannot open either
    rb"\s*\Z": "is empty", rb"\xff\xfe|\xfe\xff": "is stored as UTF-16, not as UTF-8",
    rb"(?s:.*\n)?(?:<{7}|>{7}) ": "holds git's conflict marks, <<<<<<< and >>>>>>>",
}  # fmt: skip
LARGEST_CELL = 200_000  # characters of a cell that is read
RUN_THEIR_CELL = ("time", "capture", "prun")  # magics of a cell that is run as it stands; %%timeit keeps no names
IS_TEXT = "It is a text cell: Esc, then Y, makes it code."
DEFINES = r"(?:(?:async\s+)?def\s+{0}\b|{0}\s*(?::[^=\n]*)?=(?!=))"  # text that makes a function, if not Python
REPLACES = ast.Assign | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
BINDS = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr | ast.For | ast.comprehension | ast.withitem
# methods that change what they belong to, and functions that change the first of what they are given
METHODS = r"(append|extend|register)\w*|add|insert|update|\w*pop\w*|remove|discard|clear|sort|setdefault|\w*[^_]_"
FUNCTIONS = r"setattr|next|shuffle|heap\w+|insort\w*|\w*[^_]_"


@dataclass(frozen=True)
class Statement:
    """One statement at the top of a cell, and the names it is about."""

    cell: int  # counted from 1 among code cells
    node: ast.stmt  # its line counts from the first line of the first code cell
    binds: frozenset  # "*" where it cannot be said
    reads: frozenset  # names of the notebook, also inside functions, but not what its own loops bind
    changes: list  # what `_changes` yields, with "" where there is no third


@dataclass
class Notebook:
    """The statements of a notebook's code cells."""

    cells: list[str]
    statements: list[Statement] = field(default_factory=list)
    faults: dict[int, str] = field(default_factory=dict)  # what is wrong with a cell that is not Python
    texts: str = ""  # its other cells

    def definition(self, function: str) -> Statement | None:
        """The last statement that binds a function; a stub only if nothing else binds it."""
        found = [one for one in reversed(self.statements) if function in one.binds]
        return max(found, key=lambda one: not is_stub(one.node), default=None)  # the first of equals

    def fault_of(self, function: str) -> str:
        """Why a cell that defines a function cannot be read, in words; empty if there is none."""
        defines = re.compile(rf"^[ \t]*+(?:(?:>>>|\.\.\.|%\w++)[ \t]*+)?{DEFINES.format(function)}", re.M)
        for cell, fault in self.faults.items():
            if defines.search(self.cells[cell - 1]):
                return f"Code cell {cell} is not Python: {fault}."
        return IS_TEXT if not self.definition(function) and defines.search(self.texts) else ""

    def needs(self, function: str, course: list[Statement]) -> list[ast.stmt] | None:
        """What `parts` returns, as code to run: what fails leaves the definition above it, as in a kernel."""
        if not (found := self.parts(function, course)):
            return None
        nodes, ends = [one.node for one in found], [at for at, one in enumerate(found, 1) if function in one.binds]
        if len(ends) > 1:
            first = sum(getattr(node, "module", "") == "__future__" for node in nodes)
            goes_on = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [ast.Pass()])
            cells = groupby(found[first : ends[-1]], key=lambda one: one.cell)
            tried = [ast.Try([one.node for one in cell], [goes_on], [], []) for _, cell in cells]
            tried.append(ast.Expr(ast.Name(function, ast.Load())))  # raises if all have failed
            nodes[first : ends[-1]] = map(ast.fix_missing_locations, tried)
        return nodes

    def parts(self, function: str, course: list[Statement]) -> list[Statement] | None:
        """The statements that a function needs, in order; None if no cell defines it.

        Names that the notebook does not bind may come from the statements of the course.
        """
        if not (home := self.definition(function)):
            return None
        pool = [*course, *(one for one in self._without_stubs_below_answers() if one.cell <= home.cell)]
        changers, chosen, seen, todo = {}, set(), set(), {(function, len(pool)), ("*", 0)}
        for at, (who, what, by) in ((at, change) for at, one in enumerate(pool) for change in one.changes):
            changers.setdefault(what, set()).add((who or at, by))

        def reached(name, writers):
            whose = [name]  # and what changes it: other names, places in the pool
            for one in whose:  # grows
                whose += {who for who, by in changers.get(one, ()) if not by or by in writers}.difference(whose)
            return whose

        places = [one for one in changers if isinstance(one, tuple) and one[0].endswith("()")]
        writers = set()
        while writers != (writers := {one for one in places if one[0] in reached(one, writers)}):
            pass
        while todo:
            seen.add(asked := todo.pop())
            name, place = asked  # the last statement above this place that surely binds the name, and all below it
            found = [at for at, one in enumerate(pool) if name in one.binds]
            if asked == (function, len(pool)) and isinstance(home.node, REPLACES):
                found = [at for at in found if pool[at] is home or _is_sure(pool[at].node)]
            start = len(course) if name != "*" and found and found[-1] >= len(course) else 0  # the learner's own
            gone = [at for at in found if at < place and isinstance(pool[at].node, REPLACES)]
            start = max([start, *(at for at in gone if pool[at] is not home or _is_sure(home.node))])
            kinds = {type(pool[at].node) for at in found if at >= start}  # modules are not followed further
            whose = reached(name, writers) if found and not kinds & {ast.Import, ast.ImportFrom} else []
            found = {at for at in [*found, *whose] if isinstance(at, int) and at >= start}
            chosen |= found
            todo |= {(read, at) for at in found for read in pool[at].reads} - seen
        found = [pool[at] for at in sorted(chosen)]
        return sorted(found, key=lambda one: getattr(one.node, "module", "") != "__future__")  # these must stand first

    def _without_stubs_below_answers(self):
        answered = set()
        for one in self.statements:
            if not (is_stub(one.node) and one.node.name in answered):
                answered |= one.binds if not is_stub(one.node) else set()
                yield one


def read_notebook(data: bytes) -> Notebook:
    """A notebook of any format, as it is stored.

    Raises:
        ValueError, KeyError, TypeError, AttributeError or RecursionError: if it is no notebook.
    """
    stored = stored_cells(data)
    notebook = read_cells([cell["source"] for cell in stored if cell["cell_type"] == "code"])
    notebook.texts = "\n".join(cell["source"] for cell in stored if cell["cell_type"] != "code")
    return notebook


def stored_cells(data: bytes) -> list[dict]:
    """The cells of a notebook, of the format that it names, each with its source as one text; errors as above."""
    for mark, what in BROKEN.items():
        if re.match(mark, data):
            raise ValueError(f"it {what}, so it cannot be opened: hand in a good copy")
    stored = json.loads(data.decode("utf-8-sig"))
    cells = stored.get("cells")
    if "worksheets" in stored and (stored.get("nbformat", 4) < 4 or "cells" not in stored):  # as Jupyter shows it
        cells = [cell for sheet in stored["worksheets"] for cell in sheet["cells"]]
    return [cell | {"source": "".join(cell.get("source", cell.get("input")) or "")} for cell in cells]


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


@functools.lru_cache(5000)  # an update reads each notebook for every exercise
def _statements(number, source, first):
    with warnings.catch_warnings(action="ignore"):  # such as an invalid escape: not the reader's business
        return [_statement(number, node, first) for node in _body(source) if not isinstance(node, ast.Pass)]


def _body(source):
    """The statements of a cell: in plain Python, or with magics, or pasted with the prompts of a session."""
    if len(source) > LARGEST_CELL:
        raise ValueError(f"it has {len(source):,} characters, more than {LARGEST_CELL:,}: split it")
    with contextlib.suppress(SyntaxError):
        return ast.parse(source).body
    try:
        return ast.parse(without_magics(source)).body
    except SyntaxError:
        if re.search(r"^[ \t]*+(?:>>>|In \[)", source, re.M):  # else IPython takes no prompts off
            with contextlib.suppress(SyntaxError):
                return ast.parse(without_magics(PROMPT.sub("", source))).body
        raise


def _is_sure(node):
    """Whether a statement makes a function, no exercise's stub, and nothing in it can fail."""
    match node:
        case ast.FunctionDef(args=args, decorator_list=[]):
            is_plain = all(isinstance(one, ast.Constant | None) for one in args.defaults + args.kw_defaults)
            return is_plain and not is_stub(node)
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda)


def is_stub(node: ast.stmt) -> bool:
    """Whether this is a function as it is handed out: one `raise NotImplementedError`, and perhaps a docstring."""
    match node:
        case ast.FunctionDef(body=[ast.Expr(ast.Constant(str())), last] | [last], decorator_list=[]):
            match last:
                case ast.Raise(ast.Name("NotImplementedError"), None):
                    return True
                case ast.Raise(ast.Call(ast.Name("NotImplementedError"), [] | [ast.Constant()], []), None):
                    return True
    return False


def _statement(cell, node, first):
    table = symtable.symtable(ast.unparse(node), "cell", "exec")
    binds = {name.get_name() for name in table.get_symbols() if name.is_assigned() or name.is_imported()}
    reads = {name.get_name() for name in table.get_symbols() if name.is_referenced()}
    inner = table.get_children()
    while inner:
        table = inner.pop()
        reads |= {name.get_name() for name in table.get_symbols() if name.is_global()}
        inner += table.get_children()
    known, changes = binds | reads | {""}, []
    for change in _changes(node):  # a function's own names are no others'
        change = [(x, node) if isinstance(x, str) and x.rstrip("().") not in known else x for x in change]
        changes.append((*change, "")[:3])
    reads |= {what for who, what, _ in changes if who == "" and what in binds}  # x += 1
    if isinstance(node, ast.For | ast.With):
        loops = [_binding(one) for one in ast.walk(node) if isinstance(one, ast.For | ast.withitem)]
        bound = {name for targets, _ in loops for name in _names(*targets)}
        reads -= bound - {name for _, value in loops for name in _names(value)}
    binds = set() if isinstance(node, ast.Delete) else binds
    if isinstance(node, ast.ImportFrom) and (node.module == "__future__" or node.names[0].name == "*"):
        binds = {"*"}
    return Statement(cell, ast.increment_lineno(node, first), frozenset(binds), frozenset(reads), changes)


def _changes(node):
    """Pairs (a, b): what changes a may change b; with a third, ("f()", 0), if f changes the first that it is given.

    "" is the statement, "x" what a name stands for, a node the value of an expression, "f()" a call of f, and "x." one
    of a method whose result is not used. ("f()", 0) and ("f()", "name") are arguments.
    """
    todo = [("", node)]  # who changes what stands in the node
    while todo:
        here, one = todo.pop()
        inside = here
        match one:
            case ast.Assign([ast.Name(name)], ast.Lambda(args, body)):
                todo.append((here, ast.FunctionDef(name, args, [ast.Expr(body)], [])))
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                inside, around = here or f"{name}()", [*one.decorator_list, *getattr(one, "bases", ())]
                todo += [(here, ast.Expr(ast.Call(part, [], []))) for part in around]
                yield from [(who, _head(part)) for part in around for who in (here, name)]  # which may keep it
                functions = [] if here else one.body if isinstance(one, ast.ClassDef) else [one]
                for args in (part.args.args for part in functions if isinstance(part, ast.FunctionDef)):
                    own = [arg.arg for arg in args if arg.arg not in ("self", "cls")]
                    yield from ((name, (inside, place)) for number, name in enumerate(own) for place in (number, name))
            case ast.Global(names):
                yield from ((here, name) for name in names)
            case ast.Expr(ast.Call(func)) | ast.Assign([ast.Name("_")], ast.Call(func)):
                yield here, f"{_head(func)}."
            case ast.Call(func, given, words):
                yield here, (called := f"{_head(func)}()")
                name = getattr(func, "attr", getattr(func, "id", ""))
                marked = [*enumerate(given), *((word.arg, word.value) for word in words)]
                yield from ((here, _head(part), (called, place)) for place, part in marked)
                first = [0] * bool(re.fullmatch(FUNCTIONS, name))
                yield from ((here, _head(part)) for place, part in marked if place in [*first, "out"])
                yield from ((here, f"{_head(part)}()") for part in given[:1] if name in ("map", "filter", "reduce"))
            case ast.Attribute() | ast.Subscript():
                if not isinstance(one.ctx, ast.Load) or re.fullmatch(METHODS, getattr(one, "attr", "")):
                    yield here, _head(one)
        yield from _shared(here, isinstance(one, ast.AugAssign), *_binding(one))
        todo += [(inside, child) for child in ast.iter_child_nodes(one)]


def _shared(here, changes, targets, value):
    """Of `_changes` what a binding adds: a name's object is a value's, or is held by it; `changes` if it is x += 1."""
    pairs = [(target, value) for target in targets]
    for target, value in pairs:  # grows
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs += zip(target.elts, value.elts, strict=False)
            continue
        for name in _names(target):
            yield from [(name, value), (f"{name}.", name)] + [(here, name)] * changes
            yield from [(value, name)] * (len(targets) > 1)  # a = b = []
        yield from (pair for name in _held(value) for pair in ((value, name), (value, f"{name}()")))
        yield from ((value, f"{_head(part)}()") for part in ast.walk(value) if isinstance(part, ast.Call))


def _binding(node):
    if not isinstance(node, BINDS):
        return [], None
    value = getattr(node, "value", getattr(node, "iter", getattr(node, "context_expr", None)))
    targets = getattr(node, "targets", [getattr(node, "target", getattr(node, "optional_vars", None))])
    return [target for target in targets if target and value], value


def _names(*nodes):
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}


def _held(value):
    """The names whose objects a value may be, or hold."""
    todo = [value]
    while todo:
        match one := todo.pop():
            case ast.Name(name):
                yield name
            case ast.Attribute() | ast.Subscript():
                todo.append(one.value)
            case ast.Call(ast.Name("zip" | "enumerate" | "iter" | "reversed" | "partial"), given):
                todo += given
            case ast.Call(ast.Attribute(value, name), given):
                todo += given if name in ("partial", "Parameter", "from_numpy") else [value]
            case ast.AST() if not isinstance(one, ast.Call | ast.BinOp | ast.Compare | ast.JoinedStr):
                todo += ast.iter_child_nodes(one)


def _head(node):
    """`name`, of `name.x[i].method()` and of `vars(name)[i]`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred | ast.NamedExpr):
        match node:
            case ast.Call(ast.Name("vars"), [of]):
                node = of
            case ast.Call():
                node = node.func
            case _:
                node = node.value
    return getattr(node, "id", "")


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


def without_magics(source: str) -> str:
    """A cell's Python, line for line: `pass` or `None` in the place of magics, shell commands and questions.

    It reads every letter once. IPython's own way reads the cell again for each magic.
    """
    if whole := re.match(r"\s*%%(\w+)[^\n]*", source):
        if whole[1] not in RUN_THEIR_CELL:  # of another language, or run elsewhere
            raise SyntaxError(f"it begins with %%{whole[1][:20]}, which does not run it here")
        source = "\n" * whole[0].count("\n") + source[whole.end() :]
    if indent := re.match(r"(?:[ \t]*\n)*([ \t]+)\S", source):  # of the first line
        source = re.sub(rf"^{indent[1]}", "", source, flags=re.M)
    return "".join(_plain_lines(source))


def _plain_lines(source) -> Iterator[str]:
    place, depth, starts = 0, 0, True
    while place < len(source):
        if starts and not depth and (magic := MAGIC.match(source, place)):
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
