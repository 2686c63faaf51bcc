"""Do the tests notice? Faults planted at random lines of the code, one at a time, in a copy of the tree.

A line is drawn first, then a fault on it: a comparison turned round, + for -, a number one larger, True for False, an
argument left out, a statement left out. An exercise's cases and the programs that are wrong on purpose are not drawn
from, nor what only they use: another case or another wrong program is a fault for nobody. One run of all quick tests
under coverage.py says which tests reach which line; then each fault is planted alone, and those that reach it run up
to the first that fails; if none does, all quick tests of its room run.

Run: python benchmarks/faults.py --count 40 --seed 3      (prints the rows of benchmarks/faults.md)
"""

import argparse
import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import coverage

ROOT = Path(__file__).parent.parent
ROOMS = {  # each with its quick tests; a docstring's example is one, too
    "helpers": ("tests/helpers", "helpers"), "checks": ("tests/checks", "checks"), "tools": ("tests/tools",),
    "teaching": ("teaching/tests",),
}  # fmt: skip
SWAPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
HARMLESS = ("strict", "encoding", "frozen")  # they change nothing where the code is right, and on Linux


def faulty(node):
    """Wrong versions of one node of the program."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
        yield ast.Pass()
    wrong = copy.deepcopy(node)
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPPED:
        wrong.op = SWAPPED[type(node.op)]()
        yield wrong
    elif isinstance(node, ast.Compare):
        wrong.ops[0] = SWAPPED[type(node.ops[0])]()
        yield wrong
    elif isinstance(node, ast.Call) and node.keywords and node.keywords[-1].arg not in HARMLESS:
        wrong.keywords.pop()
        yield wrong


def only_in_lists(tree):
    """Parts of a file of exercises: each one's cases and known mistakes, and the private names that only they use."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls = [call for call in calls if getattr(call.func, "id", "") == "Exercise"]
    lists = [part for call in calls for part in call.args[1:]]
    left_out = {id(node) for part in lists for node in ast.walk(part)}
    named = {}  # {a private name: the statement at the top of the file that defines it}
    for statement in tree.body:
        targets = [target.id for target in getattr(statement, "targets", ()) if isinstance(target, ast.Name)]
        names = [getattr(statement, "name", ""), *targets]
        named |= {name: statement for name in names if name.startswith("_") and name[1] != "_"}
    used = [statement for statement in tree.body if statement not in named.values()]
    for statement in used:  # grows: what a used statement names is used, too
        names = {getattr(node, "id", "") for node in ast.walk(statement) if id(node) not in left_out}
        used += [named[name] for name in names & named.keys() if named[name] not in used]
    return lists + [statement for statement in named.values() if statement not in used]


def candidates(path):
    """All faults of a file by line: {line: [(node, wrong node)]}; what stands within f-strings is left out."""
    tree, lines = ast.parse(path.read_text(encoding="utf-8")), {}
    parts = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)] + only_in_lists(tree)
    for node in ast.walk(tree):  # nor types, the help of a command, what is harmless
        parts += filter(None, (getattr(node, "annotation", None), getattr(node, "returns", None)))
        parts += [node] * (isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument")
        parts += [node] * (isinstance(node, ast.keyword) and node.arg in HARMLESS)
    left_out = {id(part) for node in parts for part in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) not in left_out:
            for wrong in faulty(node):
                lines.setdefault(node.lineno, []).append((node, wrong))
    return lines


def span(text, node):
    """Where a node of the program begins and ends in its file, in bytes."""
    rows = text.encode().splitlines(keepends=True)
    places = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    return [sum(map(len, rows[: line - 1])) + column for line, column in places]


def planted(text, node, wrong):
    """The text of a file with one node replaced; all else stays as it is written."""
    start, end = span(text, node)
    new = ast.unparse(ast.fix_missing_locations(wrong))
    if not isinstance(wrong, ast.Pass):
        new = f"({new})"
    return (text.encode()[:start] + new.encode() + text.encode()[end:]).decode()


SETTINGS = """[run]
parallel = true
patch = _exit
source_pkgs = helpers, checks, tools, teaching
data_file = {folder}/data
context = ${{PYTEST_CURRENT_TEST-import}}
disable_warnings = no-data-collected, module-not-imported, module-not-measured
"""  # the context is for processes that a test starts, such as a notebook's kernel; in pytest's own, PLUGIN says it
PLUGIN = """
import coverage

def pytest_runtest_logstart(nodeid, location):
    coverage.Coverage.current().switch_context(nodeid)
"""


def run(tree, *asked, under=(), **env):
    """The quick tests in a copy of the tree, and what pytest said."""
    env = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"} | env
    command = [sys.executable, *under, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--nbval",
               "--nbval-current-env", *asked]  # fmt: skip
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=3600)


def reached_by(tree):
    """{(file, line): the tests that run it}, of all quick tests; a notebook counts as one."""
    (tree / "reached.ini").write_text(SETTINGS.format(folder=tree), encoding="utf-8")
    (tree / "reached.py").write_text(PLUGIN, encoding="utf-8")
    settings, found = str(tree / "reached.ini"), {}
    everything = "-n", "2", "--dist", "loadfile", "notebooks", "tests", "helpers", "checks", "teaching/tests"
    under = "-m", "coverage", "run", f"--rcfile={settings}"
    done = run(tree, "-p", "reached", *everything, under=under, COVERAGE_PROCESS_START=settings)
    assert done.returncode == 0, f"without a fault, too, a test fails:\n{done.stdout[-2000:]}"
    for file in tree.glob("data.*"):
        data = coverage.CoverageData(file)
        data.read()
        for path in data.measured_files():
            for line, contexts in data.contexts_by_lineno(path).items():
                for context in contexts:
                    test = context.partition("|")[2] or re.sub(r" \(\w+\)$", "", context)
                    test = test.split("::")[0] if ".ipynb" in test else test
                    found.setdefault((str(Path(path).relative_to(tree)), line), set()).add(test)
    return found


def noticed_by(tree, room, tests):
    """What failed first: of the room's tests that reach the line, of all others that do, of the room's quick ones.

    What tests share (a fixture, a cached model) counts for the first of them, and what is imported for none: therefore
    the last step. If nothing reaches the line, all tests of the room run, slow ones too.
    """
    tests = sorted(tests - {"import"}, key=lambda test: (".ipynb" in test, test))
    near = [test for test in tests if test.startswith(ROOMS[room])]
    rest = [test for test in tests if test not in near]
    for asked in filter(None, (near, rest, [*ROOMS[room]] if tests else ["-m", "", *ROOMS[room]])):
        try:
            done = run(tree, "-x", *asked)
        except subprocess.TimeoutExpired:
            return "a test that does not end"
        if done.returncode:
            failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            assert failed or "ImportError" in done.stderr, done.stdout + done.stderr  # else pytest was asked wrongly
            return failed[0].split(" - ")[0] if failed else "nothing can be imported"
    return None


def main():
    """Plant, run, print a row each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="faults at the start that an earlier run has tried")
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")) if "tests" not in path.parts]
    lines = [(path, line, found) for path in files for line, found in sorted(candidates(path).items())]
    drawn = [(path, *draw.choice(found)) for path, line, found in draw.sample(lines, asked.count)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        trees = SimpleQueue()
        for name in "ab":
            left_out = shutil.ignore_patterns(".venv*", ".git", "build", "runs", "__pycache__")
            trees.put(Path(shutil.copytree(ROOT, Path(folder, name), ignore=left_out)))
        reached = reached_by(Path(folder, "a"))

        def row(path, node, wrong):
            file, tree = str(path.relative_to(ROOT)), trees.get()
            tests = set().union(*(reached.get((file, line), ()) for line in range(node.lineno, node.end_lineno + 1)))
            text = (tree / file).read_text(encoding="utf-8")
            (tree / file).write_text(planted(text, node, wrong), encoding="utf-8")
            by = noticed_by(tree, file.split("/")[0], tests) or f"**not noticed** by the {len(tests)} that reach it"
            (tree / file).write_text(text, encoding="utf-8")
            trees.put(tree)
            change = f"`{ast.unparse(node)[:60]}` → `{ast.unparse(wrong)[:60]}`".replace("\n", " ").replace("|", "\\|")
            return f"| {file}:{node.lineno} | {change} | {by} |"

        rows = pool.map(row, *zip(*drawn[asked.skip :], strict=True))
        for number, said in enumerate(rows, start=asked.skip + 1):
            print(f"| {number} {said}", flush=True)


if __name__ == "__main__":
    main()
