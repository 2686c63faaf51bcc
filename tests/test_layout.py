"""The house stays small and in order: who imports whom, how long a file may be, one dependency list, a true README."""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.support.wrong_answers import WRONG

ROOT = Path(__file__).parent.parent
HELPERS = sorted((ROOT / "helpers").rglob("*.py"))
MODEL = {"model", "config", "cache", "validate"}  # the last three are the leaves below model

# Which helper may import which (design.md section 3). A new file says here what it stands on.
ARROWS = {
    "__init__": set(),
    "validate": set(),
    "config": {"validate"},
    "cache": {"config", "device", "validate"},
    "model": {"config", "cache", "validate"},
    "generate": MODEL | {"device"},
    "checkpoint": MODEL | {"device"},
    "parallel": MODEL | {"checkpoint", "generate", "text"},
    "parallel_report": MODEL | {"checkpoint", "generate", "parallel"},
    "exercises": MODEL,
    "checks": MODEL | {"exercises"},
    "classroom": set(),
    "grade": {"classroom"},
    "explorers": MODEL | {"plots", "checkpoint", "generate", "masks", "text"},
    "train": MODEL | {"checkpoint", "generate", "text", "device"},
    "text": set(),
    "masks": set(),
    "plots": set(),
    "device": set(),
}


def by_stem(path):
    return name_of(path)


def name_of(path):
    """The file's name in ARROWS; a file in a folder counts as the folder."""
    return path.relative_to(ROOT / "helpers").parts[0].removesuffix(".py")


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path):
    """Every module a file imports, also inside functions."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import; write helpers.name"
            yield node.module
            if node.module == "helpers":
                yield from (f"helpers.{alias.name}" for alias in node.names)


def helpers_imported_by(path):
    return {name.split(".")[1] for name in imports_of(path) if name.startswith("helpers.")}


# ---------------------------------------------------------------------------------------------- arrows


@pytest.mark.parametrize("path", HELPERS, ids=by_stem)
def test_imports_follow_the_arrows(path):
    assert name_of(path) in ARROWS, f"{path.name} is new: say in ARROWS what it may import"
    assert helpers_imported_by(path) - {name_of(path)} <= ARROWS[name_of(path)]


def test_arrows_have_no_circle():
    done = set()
    while len(done) < len(ARROWS):
        ready = {name for name, needs in ARROWS.items() if needs <= done} - done
        assert ready, f"circle among {sorted(ARROWS.keys() - done)}"
        done |= ready


@pytest.mark.parametrize("path", HELPERS, ids=by_stem)
def test_no_helper_imports_the_referee(path):
    assert "transformers" not in {name.split(".")[0] for name in imports_of(path)}


@pytest.mark.parametrize("path", HELPERS, ids=by_stem)
def test_only_the_explorers_import_widgets(path):
    assert name_of(path) == "explorers" or "ipywidgets" not in {name.split(".")[0] for name in imports_of(path)}


@pytest.mark.parametrize("name", sorted(MODEL))
def test_the_model_needs_torch_alone(name):
    packages = {module.split(".")[0] for module in imports_of(ROOT / "helpers" / f"{name}.py")}
    assert packages - sys.stdlib_module_names <= {"torch", "helpers"}


@pytest.mark.parametrize("path", HELPERS, ids=by_stem)
def test_no_star_import_and_no_path_tricks(path):
    for node in ast.walk(tree_of(path)):
        assert not (isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names))
    assert "sys.path" not in path.read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------------ sizes


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


def functions_of(path):
    return [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_code_lines_are_counted_right(tmp_path):
    path = tmp_path / "x.py"
    path.write_text(
        '"""Doc.\n\nMore.\n"""\n# comment\n\ndef f(a,\n      b):\n    """Doc."""\n    return (a +\n            b)\n'
    )
    assert code_lines(path) == {7, 8, 10, 11}


def test_the_model_can_be_read_in_one_sitting():
    assert len(code_lines(ROOT / "helpers" / "model.py")) <= 280


@pytest.mark.parametrize("path", HELPERS, ids=by_stem)
def test_no_file_is_longer_than_450_lines(path):
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= 450


@pytest.mark.parametrize("path", HELPERS, ids=by_stem)
def test_no_function_is_longer_than_40_lines_of_code(path):
    code = code_lines(path)
    lengths = {node.name: len(code & set(range(node.lineno, node.end_lineno + 1))) for node in functions_of(path)}
    most = 60 if name_of(path) == "explorers" else 40  # an explorer keeps figure, drawing and controls in one place
    assert {name: length for name, length in lengths.items() if length > most} == {}


# -------------------------------------------------------------------------------------------- docstrings


def public_parts(body, prefix=""):
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public_parts(node.body, f"{node.name}.")


@pytest.mark.parametrize("path", HELPERS, ids=by_stem)
def test_everything_public_has_a_docstring(path):
    tree = tree_of(path)
    assert ast.get_docstring(tree)
    assert [name for name, node in public_parts(tree.body) if not ast.get_docstring(node)] == []


@pytest.mark.parametrize("path", HELPERS, ids=by_stem)
def test_the_package_docstring_lists_every_file(path):
    listed = re.findall(
        r"^    (\w+)  ", ast.get_docstring(tree_of(ROOT / "helpers" / "__init__.py"), clean=False), re.M
    )
    assert name_of(path) == "__init__" or name_of(path) in listed


# ------------------------------------------------------------------------------------- one dependency list


def test_conda_users_get_the_same_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert conda["name"] == project["name"] == "llama-notebooks"
    pip = next(entry["pip"] for entry in conda["dependencies"] if isinstance(entry, dict))
    assert pip == project["dependencies"] + project["optional-dependencies"]["dev"] + ["-e ."]
    rest = [entry for entry in conda["dependencies"] if isinstance(entry, str)]
    assert rest == [f"python {project['requires-python']}", "pip"]


# ------------------------------------------------------------------------------------------------ README


def tracked_files():
    git = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if git.returncode or not git.stdout:
        pytest.skip("not a git checkout, so nobody knows which files belong to it; runs in a clone")
    return [name for name in git.stdout.split("\0") if name and (ROOT / name).exists()]


def tree_in(text):
    """Paths of the README's tree: the fenced block with a line that starts with "helpers/".

    Each line is `path  one sentence`; files of a folder stand below it, indented by two spaces.
    """
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S):
        if not re.search(r"^helpers/ ", block, re.M):
            continue
        paths, folder = [], ""
        for line in block.splitlines():
            indent, name, sentence = re.fullmatch(r"( *)(\S+) +(\S.*)", line).groups()
            assert indent in ("", "  "), line
            assert sentence
            folder = folder if indent else name
            paths.append(folder + name if indent else name)
        return paths
    raise AssertionError('README.md has no fenced block with a line that starts with "helpers/ "')


def test_a_tree_is_read_right():
    block = "README.md  this\nhelpers/   code\n  model.py   the model\n  assets/    data\ntests/ t\n"
    text = f"```\nmake lab\n```\n\n```\n{block}```\n"
    assert tree_in(text) == ["README.md", "helpers/", "helpers/model.py", "helpers/assets/", "tests/"]


def test_readme_lists_what_is_there():
    shown = tree_in((ROOT / "README.md").read_text(encoding="utf-8"))
    tracked = [name for name in tracked_files() if not name.startswith(".")]
    wanted = {name.split("/")[0] + ("/" if "/" in name else "") for name in tracked}
    wanted |= {re.sub(r"^(helpers/[^/]+/).*", r"\1", name) for name in tracked if name.startswith("helpers/")}
    assert len(shown) == len(set(shown))
    assert set(shown) == wanted


def targets():
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/teaching.md", "docs/reliability.md", ".ci/run"])
def test_every_verb_that_is_named_exists(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    verbs = set(re.findall(r"(?:`|^|\n *)make ([a-z-]+)\b", text))
    assert verbs
    assert verbs <= targets()


def test_every_verb_explains_itself():
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)[1].split()
    explained = re.findall(r"^([a-z-]+):.*## \S", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert set(phony) == set(explained) == targets()


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_of_the_pages_resolve(name):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


# ------------------------------------------------------------------------------------------- left lying about

MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|tmp/work|root|home)/|(?<![\w.~-])/(?:work|root)\b")
MERGE_MARK = re.compile(r"^(?:<{7}|>{7}|\|{7})(?: |$)", re.M)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see /wo" + "rk/main", True),
        ("in '/ro" + "ot/.cache'", True),
        ('"/ho' + 'me/anna/x"', True),
        ("the framework/work and ../work", False),
        ("https://x.org/a/work/b", False),
    ],
)
def test_a_machine_path_is_recognised(text, found):
    assert bool(MACHINE_PATH.search(text)) == found


def test_no_file_names_a_machine_path_or_a_merge_leftover():
    faults = []
    for name in tracked_files():
        if name.endswith((".orig", ".rej", ".bak", "~")):
            faults.append(name)
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # weights and pictures
        faults += [f"{name}: {hit[0]!r}" for hit in MACHINE_PATH.finditer(text)]
        faults += [f"{name}: {hit[0]!r}" for hit in MERGE_MARK.finditer(text)]
    assert faults == []


def test_readme_counts_the_exercises_and_the_wrong_programs():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    exercises, programs = re.search(r"(\d+) exercises; (\d+) wrong programs", text).groups()
    assert (int(exercises), int(programs)) == (len(WRONG), sum(len(programs) for programs in WRONG.values()))
