"""The house stays in order: who imports whom, one dependency list, a true README, nothing left lying about."""

import ast
import copy
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions

import pytest
import yaml
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from checks import FILE_OF, FILES
from helpers.checkpoint import SAVE
from tests.support.course import ROOT, notebooks, pages

ROOMS = ("helpers", "explorers", "beyond", "checks", "tools", "teaching", "tests", "benchmarks")
PACKAGES = {room: sorted((ROOT / room).rglob("*.py")) for room in ROOMS}
FLOORS = [  # of files in helpers, the lowest first: each file or folder imports from lower ones only
    "__init__ assets validate", "config corpus device masks plots", "cache", "model", "formats",
    "generate save text train", "checkpoint interventions",
]  # fmt: skip
MAY_IMPORT = {  # rooms that a room of the course may import, itself apart
    "helpers": set(), "beyond": {"helpers"}, "explorers": {"helpers"}, "checks": {"helpers", "explorers", "beyond"},
    "tools": {"helpers", "checks"}, "teaching": {"helpers", "explorers", "beyond", "checks", "tools"},
}  # fmt: skip
ABOUT_BEYOND = {"own.py", "relatives.py", "parallel.py"}  # explorers of 08 and 09, and of a learner's own folder


@cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_of(path):
    """Every module that a file imports, also inside functions; `from helpers import plots` counts as helpers.plots."""
    return [*imports_in(ast.walk(tree_of(path)), path)]


def imports_in(nodes, path):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the whole name"
            assert "*" not in {alias.name for alias in node.names}, f"{path}: name what is imported"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages_of(path):
    return {name.split(".")[0] for name in imports_of(path)}


def file_of(module):
    """The file that a module, or a name that `checks` or a checkpoint passes on, is loaded from; None for another."""
    room, _, name = module.rpartition(".")
    if room == "helpers.checkpoint" and name in SAVE:
        return ROOT / "helpers" / "save.py"
    path = ROOT / room.replace(".", "/") / (FILE_OF.get(name, name) if room == "checks" else name)
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def helper(path):
    """A helper's name in FLOORS; a file in a folder counts as the folder."""
    return path.relative_to(ROOT / "helpers").parts[0].removesuffix(".py")


def test_helpers_import_downwards_only():
    level = {name: number for number, names in enumerate(FLOORS) for name in names.split()}
    for path in PACKAGES["helpers"]:
        assert helper(path) in level, f"{path.name} is new: give it a place in FLOORS (tests/test_layout.py)"
        used = {name.split(".")[1] for name in imports_of(path) if name.startswith("helpers.")} & level.keys()
        assert all(level[name] < level[helper(path)] for name in used - {helper(path)}), path.name


def test_rooms_import_downwards_only():
    """No file of helpers imports what stands on it; only tests, benchmarks and notebook 08 ask the reference."""
    for room, allowed in MAY_IMPORT.items():
        for path in PACKAGES[room]:
            more = {"beyond"} if room == "explorers" and path.name in ABOUT_BEYOND else set()
            below = {room} | allowed | more | ({"tests"} if "tests" in path.parts else set())
            assert packages_of(path) & PACKAGES.keys() <= below, path
    for path in [*PACKAGES["tests"], *PACKAGES["teaching"]]:
        assert path in PACKAGES["teaching"] or "teaching" not in packages_of(path), f"{path}: the course needs no kit"
        borrowed = [name for name in imports_of(path) if re.match(r"(teaching\.)?tests\.(?!support)", name)]
        assert not borrowed, f"{path}: what tests share stands in tests/support"
    asks = "relatives.py", "reference.py", "box.py", "differences.py"
    for path in [path for room in MAY_IMPORT for path in PACKAGES[room]]:
        assert "transformers" not in packages_of(path) or path.name in asks, path


def test_the_files_of_checks_stand_one_above_the_other():
    """No circle: also none that an import inside a function, or a name that the package passes on, would hide."""
    above = {"__init__": set(FILES)}
    for path in PACKAGES["checks"]:
        files = {file_of(name) for name in imports_of(path) if name.split(".")[0] == "checks"} - {None}
        above.setdefault(path.stem, set()).update(file.stem for file in files)
    TopologicalSorter(above).prepare()


def test_only_explorers_import_widgets_and_the_model_needs_torch_alone():
    for path in [path for room in MAY_IMPORT.keys() - {"explorers"} for path in PACKAGES[room]]:
        assert "ipywidgets" not in packages_of(path), path
    for path in PACKAGES["helpers"]:
        if helper(path) in ("model", "config", "cache", "validate"):
            assert packages_of(path) - sys.stdlib_module_names <= {"torch", "helpers"}, path


LINES = {  # at most, of each room; if one grows, another must shrink
    "helpers/model.py": 450, "helpers/**/*": 2865, "explorers/*.py": 3215,
    "beyond/*.py": 15, "beyond/families/*.py": 3145, "beyond/fast_decode/*.py": 556, "beyond/parallel/*.py": 311,
    "checks/**/*": 6095, "tools/**/*": 980, "teaching/**/*": 4590, "tests/**/*": 10725,
}  # fmt: skip
# Lines of helpers, explorers, beyond and checks after a notebook's last cell; 05 wires and judges all parts.
LOADED = {"00": 2855, "01": 3870, "02": 3965, "03": 4145, "04": 4320, "05": 7570}


def lines_of(paths):
    return sum(path.read_text("utf-8").count("\n") for path in paths if path.suffix in (".py", ".js", ".css"))


@pytest.mark.parametrize("files", LINES)
def test_every_room_has_a_bound_and_stays_small(files):
    assert 0 < lines_of(ROOT.glob(files)) <= LINES[files]


def test_no_room_is_without_a_bound():
    bounded = {path for files in LINES for path in ROOT.glob(files)}
    assert all(path in bounded for room in MAY_IMPORT for path in PACKAGES[room])


WHAT_A_KERNEL_LOADED = """
import pathlib, sys
root, rooms = pathlib.Path.cwd().parent, ("helpers", "explorers", "beyond", "checks")
paths = {pathlib.Path(one.__file__) for one in list(sys.modules.values()) if getattr(one, "__file__", None)}
ours = sorted(path for path in paths if path.is_relative_to(root) and path.relative_to(root).parts[0] in rooms)
print(*(path.relative_to(root) for path in ours), sep="\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", LOADED)
def test_what_a_kernel_has_loaded_after_all_cells_stays_small(number):
    """Measured by running: whatever a cell, a check or an explorer has imported of ours counts."""
    stem, notebook = next((stem, one) for stem, one in notebooks().items() if stem.startswith(number))
    notebook = copy.deepcopy(notebook)
    notebook.cells.append(new_code_cell(WHAT_A_KERNEL_LOADED))
    where = {"metadata": {"path": str(ROOT / "notebooks")}}
    client = NotebookClient(notebook, timeout=600, resources=where, coalesce_streams=True)  # a busy kernel sends pieces
    client.execute()
    loaded = notebook.cells[-1].outputs[0]["text"].split()
    assert "helpers/model.py" in loaded, stem
    assert lines_of(map(ROOT.joinpath, loaded)) <= LOADED[number], loaded


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def declared(*extras):
    """The packages that pyproject.toml declares for learners and for extras: {normalised name: its versions}."""
    found = {}
    for lines in (PROJECT["dependencies"], *map(PROJECT["optional-dependencies"].get, extras)):
        found |= {canonicalize_name(needs.name): needs.specifier for needs in map(Requirement, lines)}
    return found


def extras_for(path):
    """The extras on which a file may lean; what learners and classes run may lean on none."""
    place = path.relative_to(ROOT).as_posix()
    if re.match(
        r"(helpers|explorers|beyond|checks|notebooks)/|(tools/(lab|tiny_llama|hand_out)|teaching/classroom/\w+)\.py",
        place,
    ):
        return ()
    tests = "dev" if re.match("(teaching/)?tests|(?!teaching)", place) else None
    kit = "teaching" if place.startswith("teaching/") else None
    return filter(None, (tests, kit))


def test_every_package_that_is_imported_is_declared():
    """Under its own name, not smuggled in by a package that may drop it."""
    files = [*(path for room in PACKAGES.values() for path in room), ROOT / "conftest.py"]
    imports = {path: packages_of(path) for path in files}
    for stem, notebook in notebooks().items():
        code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
        written = set(re.findall(r"^%%writefile .*?(\w+)\.py$", code, re.M))
        imports[ROOT / "notebooks" / stem] = set(re.findall(r"^ *(?:import|from) (\w+)", code, re.M)) - written
    ours = PACKAGES.keys() | {"conftest"} | {path.stem for path in PACKAGES["benchmarks"]} | sys.stdlib_module_names
    packages, missing = packages_distributions(), set()
    for path, names in imports.items():
        for name in names - ours:
            distributions = {canonicalize_name(package) for package in packages.get(name, [name])}
            if not distributions & declared(*extras_for(path)).keys():
                missing.add(f"{path.relative_to(ROOT)} imports {name}")
    assert not missing


def test_conda_users_get_what_a_learner_needs():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    pip = next(entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict))
    assert pip == ["-c constraints.txt", *PROJECT["dependencies"], "-e ."]
    rest = [entry for entry in conda["dependencies"] if isinstance(entry, str)]
    assert rest == [f"python {PROJECT['requires-python']},<3.14", "pip"]  # conda would take a Python not tested yet


def test_constraints_hold_every_declared_package_in_an_allowed_version():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.partition(" ;")[0].split("==") for line in lines if not line.startswith("#"))
    for name, versions in declared("dev", "teaching").items():
        assert pins[name] in versions, name
    assert not any("+" in version for version in pins.values())  # 2.13.0+cpu is found on one machine only


def test_what_the_readmes_tree_shows_is_there():
    folder, tree = "", re.search(r"^```\n(README\.md .*?)^```", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)[1]
    shown = set()
    for line in tree.splitlines():
        indent, name = re.fullmatch(r"( {2}|)(\S+) +\S.*", line).groups()
        folder = folder if indent else name
        assert (ROOT / (folder + name if indent else name)).exists(), line
        shown.add(folder + name)
    for room in ("helpers", "explorers", "beyond", "checks", "tools"):
        there = {f"{room}/{path.name}" for path in (ROOT / room).glob("[a-z]*.py")}
        assert there <= shown, f"README, What is where, does not name {there - shown}"


def test_every_verb_that_a_page_names_exists_and_explains_itself():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    assert set(re.search(r"^\.PHONY: (.*)$", makefile, re.M)[1].split()) == targets
    assert set(re.findall(r"^([a-z-]+):.*## \S", makefile, re.M)) == targets
    for page in [*pages(), ROOT / ".ci" / "run"]:
        verbs = re.findall(r"(?:`(?:\w+=\w+ )?|^|\n *)make ([a-z][a-z-]*)\b", page.read_text(encoding="utf-8"))
        assert set(verbs) <= targets, page.name


MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|tmp/work|root|home)/|(?<![\w.~-])/(?:work|root)\b")


def test_no_file_names_a_machine_path_or_is_a_merge_leftover():
    git = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if git.returncode or not git.stdout:
        pytest.skip("not a git checkout, so nobody knows which files belong to it; runs in a clone")
    for name in filter(lambda name: (ROOT / name).is_file(), git.stdout.split("\0")):
        assert not name.endswith((".orig", ".rej", ".bak", "~")), name
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # weights and pictures
        assert not MACHINE_PATH.search(text), name
