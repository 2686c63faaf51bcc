"""The house stays in order: who imports whom, one dependency list, a true README, nothing left lying about."""

import ast
import re
import subprocess
import sys
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
    """notebooks and tools -> checks -> helpers; only tests and benchmarks ask the referee."""
    for room, below in (("helpers", {"helpers"}), ("checks", {"checks", "helpers"})):
        for path in ROOMS[room]:
            assert packages_of(path) & ROOMS.keys() <= below, path
    for path in ROOMS["tools"]:
        assert not packages_of(path) & {"tests", "benchmarks"}, path
    for path in [*ROOMS["helpers"], *ROOMS["checks"], *ROOMS["tools"]]:
        assert "transformers" not in packages_of(path), path


def test_only_explorers_import_widgets_and_the_model_needs_torch_alone():
    for path in ROOMS["helpers"]:
        assert helper(path) == "explorers" or "ipywidgets" not in packages_of(path), path
        if helper(path) in LEAVES | {"model"}:
            assert packages_of(path) - sys.stdlib_module_names <= {"torch", "helpers"}, path


def test_the_model_can_be_read_in_one_sitting():
    assert (ROOT / "helpers" / "model.py").read_text(encoding="utf-8").count("\n") <= 460


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


def test_what_the_readmes_tree_shows_is_there():
    """Each line is `path  one sentence`, or a path of a folder, indented by two spaces."""
    folder, tree = "", re.search(r"^```\n(README\.md .*?)^```", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)[1]
    for line in tree.splitlines():
        indent, name = re.fullmatch(r"( {2}|)(\S+) +\S.*", line).groups()
        folder = folder if indent else name
        assert (ROOT / (folder + name if indent else name)).exists(), line


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


def test_no_file_names_a_machine_path_or_holds_a_merge_leftover():
    assert MACHINE_PATH.search("see /wo" + "rk/main")
    assert not MACHINE_PATH.search("the framework/work and ../work")
    for name in tracked_files():
        assert not name.endswith((".orig", ".rej", ".bak", "~")), name
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # weights and pictures
        assert not MACHINE_PATH.search(text), name
        assert not MERGE_MARK.search(text), name
