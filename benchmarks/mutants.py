"""Mutation testing: one small change at a time in a helper; do the tests notice? make mutants

A mutant is the module with one change: `<` becomes `<=`, `+` becomes `-`, a constant moves by one, a condition is
negated, a keyword argument or a statement is gone. Killed: a test fails or hangs. A survivor is missed by every test;
it must stand, with a reason, in docs/mutants.md, otherwise this ends with status 1.

The tests are collected once. A first run notes which lines of the helper each test reaches, and how long it takes; a
mutant then lives in a fork of this process, in which the tests that reach its line run until one fails, those that
killed most per second first. No file is changed. Left out: texts of errors (tests/test_errors.py), other strings, type
hints, docstrings, decorators, and `device=`, which no machine with only a CPU can miss.

Run: python benchmarks/mutants.py [model generate checks] [--only WORDS] [--minutes 30] [--seed 0]
"""

import argparse
import ast
import inspect
import json
import os
import random
import re
import signal
import sys
import threading
import time
import types
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: forks and threads do not mix

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).parent.parent
LIST = ROOT / "docs" / "mutants.md"
# of the checks only the tests of a few exercises
OTHERS = r"\[(?!silu|rms_norm|hidden_dim|causal_visible|cache_write|attention_head)"
TESTS = {  # for each helper the files of tests that are about it, and a pattern of tests to leave out
    "model": (
        ["test_model", "test_parity", "test_generate", "test_masks", "test_config"],
        "wrong_model|importing|smaller_weights_cost",
    ),
    "generate": (["test_generate"], "$^"),
    "checks": (["test_checks"], f"same_every|habit_of|from_many|(answer(?!_need)|mistake|knows|known)\\w*{OTHERS}"),
}

SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.MatMult: ast.Mult,
}  # fmt: skip


# ------------------------------------------------------------------------------------------- the changes


def changes_of(node):
    """Every (field, new value) that makes a mutant of one node of the syntax tree."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            yield "ops", [*node.ops[:place], SWAPS[type(operator)](), *node.ops[place + 1 :]]
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign):
        yield "op", SWAPS[type(node.op)]()
    if isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        if isinstance(node.value, bool):
            yield "value", not node.value
        elif isinstance(node.value, int):
            yield "value", node.value + 1
            yield "value", node.value - 1
        else:
            yield "value", 10 * node.value if node.value else 1.0
    if isinstance(node, ast.Call):
        for place, keyword in enumerate(node.keywords):
            if keyword.arg != "device":
                yield "keywords", node.keywords[:place] + node.keywords[place + 1 :]
    if isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(node.test, ast.Compare | ast.UnaryOp):
        yield "test", ast.UnaryOp(ast.Not(), node.test)
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.UnaryOp):  # `not x`, `-x` and `~x` become x
            yield name, value.operand
        is_body = isinstance(value, list) and all(isinstance(entry, ast.stmt) for entry in value)
        if is_body and not isinstance(node, ast.Module | ast.ClassDef):
            for place, statement in enumerate(value):
                if replaced := without(statement):
                    yield name, [*value[:place], replaced, *value[place + 1 :]]


def without(statement):
    """What stands where a statement was removed, or None for one that stays."""
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    kinds = ast.Expr | ast.Assign | ast.AugAssign | ast.Raise | ast.Break | ast.Continue | ast.Return
    return ast.Pass() if isinstance(statement, kinds) and not is_text else None


def mutants_of(tree):
    """Every (name, statement, node, field, new value); the name says where and what, without the line."""

    def visit(node, where, statement):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            where = f"{where}.{node.name}" if where else node.name
        statement = node if isinstance(node, ast.stmt) else statement
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.arg | ast.Import | ast.ImportFrom | ast.AnnAssign):
            return
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return
        for field, new in changes_of(node):
            old, before = getattr(node, field), shown(statement)
            setattr(node, field, new)
            after = shown(statement)
            setattr(node, field, old)
            yield f"{where or 'module'}: {difference(before, after)}", statement, node, field, new
        for name, value in ast.iter_fields(node):
            if name in ("returns", "annotation", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, where, statement)

    yield from visit(tree, "", tree)


def shown(statement):
    return ast.unparse(ast.fix_missing_locations(statement))


def difference(before, after):
    """The one line that differs, before and after."""
    rows = before.splitlines(), after.splitlines()
    while len(rows[0]) > 1 and rows[1] and rows[0][0] == rows[1][0]:
        rows[0].pop(0), rows[1].pop(0)
    while len(rows[0]) > 1 and rows[1] and rows[0][-1] == rows[1][-1]:
        rows[0].pop(), rows[1].pop()
    first, second = (" ".join(part.strip() for part in lines) for lines in rows)
    same = next((place for place, pair in enumerate(zip(first, second, strict=False)) if len(set(pair)) > 1), 0)
    start = 0 if len(first) <= 100 else max(0, same - 50)
    first, second = (("..." if start else "") + text[start : start + 100] for text in (first, second))
    return f"`{first}` -> `{second}`"


# ------------------------------------------------------------------------------------------- running them


def put_in_place(module, tree):
    """Give every function and constant of an imported module what the syntax tree says."""
    code = compile(ast.fix_missing_locations(tree), module.__file__, "exec", dont_inherit=True)
    fresh = types.ModuleType(module.__name__)
    fresh.__file__ = module.__file__
    exec(code, vars(fresh))
    _take_over(module, fresh, module.__name__)


def _take_over(ours, theirs, home):
    for name, new in list(vars(theirs).items()):
        old = vars(ours).get(name)
        if isinstance(old, types.FunctionType):
            inner, changed = inspect.unwrap(old), inspect.unwrap(new)
            if inner.__module__ != home:
                continue
            if inner.__code__.co_freevars != changed.__code__.co_freevars:
                setattr(ours, name, new)
                continue
            inner.__code__, inner.__defaults__ = changed.__code__, changed.__defaults__
            inner.__kwdefaults__ = changed.__kwdefaults__
        elif isinstance(old, type):
            if old.__module__ == home:
                _take_over(old, new, home)
        elif isinstance(ours, types.ModuleType) and not name.startswith("__") and not isinstance(old, types.ModuleType):
            setattr(ours, name, new)


def in_a_fork(work):
    """The exit status of a fork of this process that does the work, and what it wrote into its pipe."""
    readable, writable = os.pipe()
    process = os.fork()
    if process == 0:
        status = 3
        try:
            os.close(readable)
            silent = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(silent, descriptor)
            status = work(writable)
        finally:
            os._exit(status)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        written = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), written


def fails(item, following):
    """Whether a test fails."""
    return any(report.failed for report in runtestprotocol(item, nextitem=following, log=False))


def look(items, path):
    """For each test: which lines of a file it runs, and its seconds. Ends the run where a test fails."""

    def work(pipe):
        lines = set()

        def trace(frame, event, argument):
            if frame.f_code.co_filename != path:
                return None
            lines.add(frame.f_lineno)
            return trace

        rows = []
        for item, following in zip(items, [*items[1:], None], strict=True):
            lines.clear()
            start = time.perf_counter()
            threading.settrace(trace)
            sys.settrace(trace)
            failed = fails(item, following)
            sys.settrace(None)
            threading.settrace(None)
            rows.append((sorted(lines), time.perf_counter() - start, failed))
        with os.fdopen(pipe, "wb") as file:
            file.write(json.dumps(rows).encode())
        return 0

    status, written = in_a_fork(work)
    if status:
        pytest.exit(f"the tests end with status {status} without any change", returncode=1)
    rows = json.loads(written)
    broken = [item.nodeid for item, row in zip(items, rows, strict=True) if row[2]]
    if broken:
        pytest.exit(f"these fail without any change: {broken}", returncode=1)
    return [(set(row[0]), row[1]) for row in rows]


def try_mutant(module, tree, items, seconds):
    """The place in items of the test that fails or hangs under the mutant, -1: it cannot be imported; None: none."""

    def work(pipe):
        os.write(pipe, b"-1 ")
        put_in_place(module, tree)
        for place, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True)):
            os.write(pipe, f"{place} ".encode())
            signal.alarm(int(15 + 5 * seconds[place]))  # nobody listens: it ends the process
            if fails(item, following):
                return 1
        return 0

    status, written = in_a_fork(work)
    return None if status == 0 else int(written.split()[-1])


class Mutants:
    """A plugin of pytest that runs mutants instead of tests."""

    def __init__(self, chosen):
        self.chosen, self.rows, self.survivors = chosen, [], []

    def pytest_runtestloop(self, session):
        """Called by pytest once the tests are collected."""
        for stem in self.chosen.stems:
            files, left_out = TESTS[stem]
            items = [i for i in session.items if i.path.stem in files and not re.search(left_out, i.name)]
            self.run(stem, [item for item in items if type(item) is pytest.Function])
        return True

    def run(self, stem, items):
        """All mutants of helpers/<stem>.py, in the order of the seed, until time is up."""
        module = sys.modules[f"helpers.{stem}"]
        tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
        mutants = list(mutants_of(tree))
        chosen = [mutant for mutant in mutants if self.chosen.only in mutant[0]]
        random.Random(self.chosen.seed).shuffle(chosen)
        start = time.monotonic()
        seen = look(items, module.__file__)
        print(f"{stem}: {len(items)} tests, {sum(row[1] for row in seen):.0f} s", flush=True)
        seconds = [row[1] for row in seen]
        kills, survivors, ran = [0] * len(items), [], 0
        for name, statement, node, field, new in chosen:
            if time.monotonic() > start + 60 * self.chosen.minutes:
                break
            old = getattr(node, field)
            setattr(node, field, new)
            lines = set(range(statement.lineno, statement.end_lineno + 1))
            everywhere = name.startswith("module:")  # it runs when the helper is imported
            places = [place for place, (reached, _) in enumerate(seen) if everywhere or lines & reached]
            places.sort(key=lambda place: -(kills[place] + 0.01) / (seen[place][1] + 0.02))
            killer = try_mutant(module, tree, [items[p] for p in places], [seconds[p] for p in places])
            setattr(node, field, old)
            ran += 1
            if killer is None:
                survivors.append(name)
            elif killer >= 0:
                kills[places[killer]] += 1
            by = f"survived {len(places)} tests"
            if killer is not None:
                by = items[places[killer]].name if killer >= 0 else "its import"
            print(f"{ran}/{len(chosen)} line {statement.lineno} {name}: {by}", flush=True)
        if (place := try_mutant(module, tree, items, seconds)) is not None:  # was a file edited meanwhile?
            pytest.exit(f"{stem}: {items[place].nodeid} now fails without any change: nothing counts", returncode=1)
        self.rows.append((f"helpers/{stem}.py", len(mutants), ran, ran - len(survivors), len(survivors)))
        self.survivors += survivors


def main():
    """Run the mutants, print a table, end with status 1 where a survivor is not explained."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("stems", nargs="*", default=list(TESTS), help="model, generate, checks; default: all")
    parser.add_argument("--only", default="", help="run only mutants whose name has these words")
    parser.add_argument("--minutes", type=float, default=30, help="at most so long for each file")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which they run")
    mutants = Mutants(parser.parse_args())
    os.chdir(ROOT)
    files = sorted({f"tests/{name}.py" for stem in mutants.chosen.stems for name in TESTS[stem][0]})
    options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist"]
    if status := pytest.main([*options, *files], plugins=[mutants]):
        sys.exit(int(status))
    print("| file | mutants | run | killed | survivors |", "|---|---|---|---|---|", sep="\n")
    for row in mutants.rows:
        print("| `{}` | {} | {} | {} | {} |".format(*row))
    explained = LIST.read_text(encoding="utf-8") if LIST.exists() else ""
    if missed := [name for name in mutants.survivors if name not in explained]:
        sys.exit("\n".join([f"Not explained in docs/{LIST.name}:", *missed]))


if __name__ == "__main__":
    main()
