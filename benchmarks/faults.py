"""Do the tests notice? Faults planted at random lines of the code, one at a time, in a copy of the tree.

A line is drawn first, then a fault on it: a comparison turned round, + for -, a number one larger, True for False, an
argument left out, a statement left out. An exercise's cases and the programs that are wrong on purpose are not drawn
from, nor what only they use: another case or another wrong program is a fault for nobody. One run of all quick tests
with a probe on each drawn line says which tests reach it; then each fault is planted alone, and they run up to the
first that fails; if none does, all quick tests of its room run.

Run: python benchmarks/faults.py --count 40 --seed 3      (about an hour; prints the rows of benchmarks/faults.md)
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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


PROBE = """
import os
seen = set()

def at(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "import").rsplit(" (", 1)[0]
    if (number, test) not in seen:
        seen.add((number, test))
        with open(os.environ["REACHED"], "a") as file:
            file.write(f"{number}\\t{test}\\n")
"""


def run(copied, *asked):
    """The quick tests in the copy, and what pytest said."""
    env = os.environ | {"PYTHONPATH": str(copied), "OMP_NUM_THREADS": "1", "REACHED": str(copied / "reached.tsv")}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--nbval",
               "--nbval-current-env", *asked]  # fmt: skip
    return subprocess.run(command, cwd=copied, env=env, capture_output=True, text=True, timeout=3600)


def reached_by(copied, drawn):
    """{number of a fault: the tests that run its line}, in the order in which they ran; notebooks whole, at the end."""
    files, tests = {}, {number: {} for number in range(len(drawn))}
    for number, (path, _, node, _) in enumerate(drawn):
        files.setdefault(path, []).append((number, node))
    for path, nodes in files.items():
        text = path.read_text(encoding="utf-8")
        new, added = text.encode(), []
        for number, node in nodes:
            start, end = span(text, node)
            added += [(start, f"(__import__('reached').at({number}), (".encode()), (end, b"))[1]")]
        for position, probe in sorted(added, reverse=True):
            new = new[:position] + probe + new[position:]
        (copied / path.relative_to(ROOT)).write_bytes(new)
    (copied / "reached.py").write_text(PROBE, encoding="utf-8")
    run(copied, "-n", "2", "--dist", "loadfile", "notebooks", "tests", "helpers", "checks", "teaching/tests")
    for path in files:
        shutil.copy(path, copied / path.relative_to(ROOT))
    for row in (copied / "reached.tsv").read_text(encoding="utf-8").splitlines():
        number, test = row.split("\t")
        tests[int(number)][test.split("::")[0] if ".ipynb" in test else test] = True
    return {number: sorted(found, key=lambda test: ".ipynb" in test) for number, found in tests.items()}


def noticed_by(copied, room, tests):
    """What failed first: of the room's tests that reach the line, of all others that do, of the room's quick ones.

    The probe cannot see all: what tests share (a fixture, a cached model) or what runs at import counts for the first.
    If nothing reaches the line, all tests of the room run, slow ones too.
    """
    tests = [test for test in tests if test != "import"]
    near = [test for test in tests if test.startswith(ROOMS[room])]
    rest = [test for test in tests if test not in near]
    both = "-n", "2", "--dist", "loadfile"
    steps = [near, [*both, *rest] if rest else [], [*both, *ROOMS[room]]]
    if not tests:
        steps = [["-m", "", *both, *ROOMS[room]]]
    for asked in filter(None, steps):
        try:
            done = run(copied, "-x", *asked)
        except subprocess.TimeoutExpired:
            return "a test that does not end"
        if done.returncode:
            failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return failed[0].split(" - ")[0] if failed else "nothing could be collected"
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
    drawn = [(path, line, *draw.choice(found)) for path, line, found in draw.sample(lines, asked.count)]
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder, "tree")
        shutil.copytree(ROOT, copied, ignore=shutil.ignore_patterns(".venv*", ".git", "build", "runs", "__pycache__"))
        reached = reached_by(copied, drawn)
        for number, (path, line, node, wrong) in list(enumerate(drawn))[asked.skip :]:
            file, text = path.relative_to(ROOT), path.read_text(encoding="utf-8")
            (copied / file).write_text(planted(text, node, wrong), encoding="utf-8")
            by = noticed_by(copied, file.parts[0], reached[number])
            (copied / file).write_text(text, encoding="utf-8")
            change = f"`{ast.unparse(node)[:60]}` → `{ast.unparse(wrong)[:60]}`".replace("\n", " ").replace("|", "\\|")
            by = by or f"**not noticed** by the {len(reached[number])} that reach it"
            print(f"| {number + 1} | {file}:{line} | {change} | {by} |", flush=True)


if __name__ == "__main__":
    main()
