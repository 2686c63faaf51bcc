"""The house stays in order: who imports whom, one dependency list, a true README, nothing left lying about."""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from graphlib import TopologicalSorter

import pytest
import yaml

from tests.support.course import ROOT, pages, targets

ROOMS = {room: sorted((ROOT / room).rglob("*.py")) for room in ("helpers", "checks", "tools", "tests", "benchmarks")}
LEAVES = {"config", "cache", "validate"}  # below model
# Which helper may import which. A new file says here what it stands on.
ARROWS = {
    "__init__": set(),
    "assets": set(),
    "validate": set(),
    "config": {"validate"},
    "cache": {"config", "device", "validate"},
    "model": LEAVES,
    "relatives": LEAVES | {"model", "masks"},
    "generate": LEAVES | {"model", "device"},
    "fast_decode": LEAVES | {"model", "relatives"},
    "checkpoint": LEAVES | {"model", "device", "relatives"},
    "train": LEAVES | {"model", "checkpoint", "text", "device"},
    "parallel": LEAVES | {"model", "relatives", "checkpoint", "generate", "text"},
    "explorers": LEAVES | {"model", "relatives", "plots", "checkpoint", "generate", "masks", "text"},
    "text": {"assets"},
    "masks": set(),
    "plots": set(),
    "device": set(),
}


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path):
    """Every module that a file imports, also inside functions; `from helpers import plots` counts as helpers.plots."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the whole name"
            assert "*" not in {alias.name for alias in node.names}, f"{path}: name what is imported"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages_of(path):
    return {name.split(".")[0] for name in imports_of(path)}


def helper(path):
    """A helper's name in ARROWS; a file in a folder counts as the folder."""
    return path.relative_to(ROOT / "helpers").parts[0].removesuffix(".py")


def test_helpers_import_along_the_arrows():
    for path in ROOMS["helpers"]:
        assert helper(path) in ARROWS, f"{path.name} is new: say in ARROWS (tests/test_layout.py) what it may import"
        used = {name.split(".")[1] for name in imports_of(path) if name.startswith("helpers.")} & ARROWS.keys()
        assert used - {helper(path)} <= ARROWS[helper(path)], path.name


def test_arrows_have_no_circle():
    TopologicalSorter(ARROWS).prepare()  # raises CycleError, with the names of the circle


def test_rooms_import_downwards_only():
    """notebooks and tools -> checks -> helpers; whoever hands out the course needs neither tools nor tests."""
    for room, below in (("helpers", {"helpers"}), ("checks", {"checks", "helpers"})):
        for path in ROOMS[room]:
            assert packages_of(path) & ROOMS.keys() <= below, path
    for path in ROOMS["tools"]:
        assert not packages_of(path) & {"tests", "benchmarks"}, path
        if "classroom" not in path.parts:  # a class needs notebooks, not the reverse; a website hands out
            assert not {name for name in imports_of(path) if "classroom" in name} - HANDS_OUT, path


HANDS_OUT = {"tools.classroom.hand_out", "tools.classroom.hand_out.student"}


def test_only_tests_and_benchmarks_import_the_referee():
    for path in [*ROOMS["helpers"], *ROOMS["checks"], *ROOMS["tools"]]:
        assert "transformers" not in packages_of(path), path


def test_only_explorers_import_widgets_and_the_model_needs_torch_alone():
    for path in ROOMS["helpers"]:
        assert helper(path) == "explorers" or "ipywidgets" not in packages_of(path), path
        if helper(path) in LEAVES | {"model"}:
            assert packages_of(path) - sys.stdlib_module_names <= {"torch", "helpers"}, path


def test_no_test_imports_another_test():
    for path in ROOMS["tests"]:
        assert not [name for name in imports_of(path) if re.search(r"^tests\b.*\.(test_|conftest)", name)], path


def test_one_word_names_a_notebook_its_explorer_its_checks_and_their_answers():
    stems = {path.stem[3:] for path in (ROOT / "notebooks").glob("*.ipynb")} - {"start_here"}
    for folder in ("helpers/explorers", "checks", "tests/support/answers"):
        files = {path.stem for path in (ROOT / folder).glob("*.py")}
        assert files - {"__init__", "base", "judge", "register", "parts", "notebook", "my_llama"} == stems, (
            f"{folder} has one file per notebook"
        )


def code_lines(path):
    """Numbers of the lines that hold code: no blank lines, comments or docstrings."""
    text = path.read_text(encoding="utf-8")
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return lines


def test_the_model_can_be_read_in_one_sitting():
    assert len(code_lines(ROOT / "helpers" / "model.py")) <= 280


def test_helpers_can_be_read_in_an_afternoon():
    assert sum(path.read_text(encoding="utf-8").count("\n") for path in ROOMS["helpers"]) <= 4430


def public_parts(body, prefix=""):
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public_parts(node.body, f"{node.name}.")


def test_everything_public_in_helpers_has_a_docstring():
    for path in ROOMS["helpers"]:
        tree = tree_of(path)
        assert ast.get_docstring(tree), path
        assert [name for name, node in public_parts(tree.body) if not ast.get_docstring(node)] == [], path


def test_the_package_docstring_lists_every_helper():
    docstring = ast.get_docstring(tree_of(ROOT / "helpers" / "__init__.py"), clean=False)
    assert set(re.findall(r"^    (\w+)  ", docstring, re.M)) == ARROWS.keys() - {"__init__"}


# ------------------------------------------------------------------------------------- one dependency list


def test_conda_users_get_what_a_learner_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert conda["name"] == project["name"] == "llama-notebooks"
    pip = next(entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict))
    assert pip == [*project["dependencies"], "-e ."]
    rest = [entry for entry in conda["dependencies"] if isinstance(entry, str)]
    assert rest == [f"python {project['requires-python']}", "pip"]


# ------------------------------------------------------------------------------------------------ README


def tracked_files():
    git = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if git.returncode or not git.stdout:
        pytest.skip("not a git checkout, so nobody knows which files belong to it; runs in a clone")
    return [name for name in git.stdout.split("\0") if name and (ROOT / name).exists()]


def tree_in(text):
    """Paths of the README's tree: each line is `path  one sentence`, or a path of a folder, indented by two spaces."""
    paths, folder = [], ""
    for line in re.search(r"^```\n(README\.md .*?)^```", text, re.M | re.S)[1].splitlines():
        indent, name = re.fullmatch(r"( {2}|)(\S+) +\S.*", line).groups()
        folder = folder if indent else name
        paths.append(folder + name if indent else name)
    return paths


def test_readme_lists_what_is_there():
    """The top level, and what is inside helpers, checks, tools and tests."""
    shown = tree_in((ROOT / "README.md").read_text(encoding="utf-8"))
    tracked = [name for name in tracked_files() if not re.match(r"\.|.*__init__\.py$", name)]
    wanted = {re.sub(r"/.*", "/", name) for name in tracked}
    wanted |= {re.sub(r"^(\w+/[^/]+/).*", r"\1", name) for name in tracked if re.match("(helpers|checks|tools)/", name)}
    assert len(shown) == len(set(shown))
    assert set(shown) == wanted


def test_every_verb_that_a_page_names_exists_and_explains_itself():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert set(re.search(r"^\.PHONY: (.*)$", makefile, re.M)[1].split()) == targets()
    assert set(re.findall(r"^([a-z-]+):.*## \S", makefile, re.M)) == targets()
    for page in [*pages(), ROOT / ".ci" / "run"]:
        verbs = re.findall(r"(?:`(?:\w+=\w+ )?|^|\n *)make ([a-z][a-z-]*)\b", page.read_text(encoding="utf-8"))
        assert set(verbs) <= targets(), page.name


# ------------------------------------------------------------------------------------------- left lying about

MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|tmp/work|root|home)/|(?<![\w.~-])/(?:work|root)\b")
MERGE_MARK = re.compile(r"^(?:<{7}|>{7}|\|{7})(?: |$)", re.M)
OLD_PATH = re.compile(
    r"helpers[/.](?:exercises|classroom|grade|checks)\b|deploy/jupyter|docs/site|06_train_and_gen|07_scal"
)


@pytest.mark.parametrize(
    ("text", "found"),
    [("see /wo" + "rk/main", True), ("in '/ro" + "ot/.cache'", True), ("the framework/work and ../work", False)],
)
def test_a_machine_path_is_recognised(text, found):
    assert bool(MACHINE_PATH.search(text)) == found


def test_no_file_names_a_machine_path_an_old_place_or_a_merge_leftover():
    """Old places are named where a notebook of an older version is recognised, and there only."""
    knows_old = {"helpers/__init__.py", "tools/classroom/handed_in.py", "tests/test_layout.py", "CHANGELOG.md"}
    for name in tracked_files():
        assert not name.endswith((".orig", ".rej", ".bak", "~")), name
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # weights and pictures
        assert not MACHINE_PATH.search(text), name
        assert not MERGE_MARK.search(text), name
        if not name.startswith("tests/") and name not in knows_old:
            assert not OLD_PATH.search(text), f"{name}: {OLD_PATH.search(text)[0]}"
