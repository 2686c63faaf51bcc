"""A newer version comes under a learner's work: answers are put back, and no word of the older folder is lost."""

import io
import json
import os
import re
import time
from contextlib import redirect_stdout

import pytest

from checks import my_parts
from tests.support.messy import CHECK, FILES, HEAD, LINE, PASSES, RIGHT, SET_UP, stored
from tests.support.messy import STUB as NORM_STUB
from tests.support.submissions import NORM, code_cell, handed_out, write
from tools import update

STUB = "from checks import check_{0}\n\n\ndef my_{0}(x):\n    raise NotImplementedError\n\n\ncheck_{0}(my_{0})"
ANSWER = "import math\n\n\ndef my_{0}(x):\n    return x  # mine: {0}\n\n\n%time my_{0}(1)\ncheck_{0}(my_{0}, seconds=9)"


def sources(path):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]


def test_answers_to_exercises_that_left_are_named_those_with_another_number_come_and_what_is_there_stays(
    tmp_path, capsys
):
    """What stands below "Solutions" is the course's, whatever its functions are called."""
    solved = "def solution_{0}(x):\n    return {1}\n\n\ncheck_{0}(solution_{0})"
    begun = STUB.format("c").replace("    raise", "    y = x + 1  # mine: c\n    raise")
    answers = [*map(ANSWER.format, "ab"), begun]
    lambdas = "my_d = lambda x: x\ncheck_d(my_d)\n", "my_e = lambda x: x\ncheck_e(my_e)\n"
    for place, cells, solution in ("old", [*answers, *lambdas], "x"), ("new", map(STUB.format, "ace"), "x + 0"):
        made = [text for n, cell in enumerate(cells, 1) for text in (f"### Exercise {n}", cell)]
        made = stored([*made, "## Solutions", solved.format("a", solution)])
        for cell in made["cells"]:
            cell["cell_type"] = "markdown" if cell["source"].startswith("#") else "code"
        write(tmp_path / place / "notebooks" / "02_rope.ipynb", made)
    assert not update.update(tmp_path / "new", tmp_path / "old")
    said, now = capsys.readouterr().out, sources(tmp_path / "new" / "notebooks" / "02_rope.ipynb")
    assert [now[0], now[2], now[4]] == [f"### Exercise {n}" for n in (1, 2, 3)]
    for cell, mine in zip(now[1:6:2], ("mine: a", "mine: c", "my_e = lambda"), strict=True):
        assert mine in cell
    gone = "my_{} (no notebook here that can be read asks for it)".format
    assert f"my_a, my_c, my_e put back; not put back: {gone('b')}, {gone('d')}. All that you wrote" in said
    path = tmp_path / "new" / "notebooks" / "02_rope.ipynb"
    path.write_text(after := path.read_text().replace("return x  # mine", "return -x  # mine"))
    assert not update.update(tmp_path / "new", tmp_path / "old")
    assert path.read_text() == after
    left = f"my_a (the exercise holds another answer), {gone('b')}, {gone('d')}"
    assert f"my_c, my_e there already; not put back: {left}." in capsys.readouterr().out


HELP = "SCALE = 1.0\n\n\ndef scaled(y, m):\n    # why float32?\n    return SCALE * y * torch.rsqrt(m)"
BY_HELP = RIGHT.replace("y * torch.rsqrt(", "scaled(y, ")
AROUND = "\n    # a\u2028b\x0cc\x85d\u2029e\n    w = 'a\u2028b'\n    y"
CACHED = "import functools\n\n\n@functools.cache\ndef one():\n    return 1.0"
INDENTED = RIGHT.replace("\n", "\n    ")
FORMS = {  # of a right answer, as cells
    "a guard": [RIGHT.replace("\n    y", "\n    if eps < 0:\n        raise NotImplementedError\n    y") + CHECK],
    "lambda": [f"my_rms_norm = lambda x, weight, eps: (lambda y: {LINE})(x.float())" + CHECK],
    "in a try": [f"try:\n    {INDENTED}\nexcept ValueError:\n    pass" + CHECK],
    "separators of lines": [RIGHT.replace("\n    y", AROUND) + CHECK],
    "indented": ["    " + INDENTED],
    "timed, from the future": [f"%%time\nfrom __future__ import annotations\n{RIGHT.replace('x,', 'x: A,')}"],
    "the future above": ["from __future__ import annotations", RIGHT.replace("x,", "x: A,") + CHECK],
    "a helper and its constant above": [HELP, BY_HELP + CHECK],
    "a helper above that another cell changes": [HELP, "SCALE = SCALE / 2", "SCALE *= 2", BY_HELP + CHECK],
    "helpers on one line": ["import torch as t; SCALE = 1; scaled = lambda y, m: y * SCALE * t.rsqrt(m)", BY_HELP],
    "a helper with prompts": [">>> " + HELP.replace("\n", "\n... "), ">>> " + BY_HELP.replace("\n", "\n... ")],
    "a decorated helper": [CACHED, HELP, "SCALE = one()", BY_HELP],
    "two exercises in a cell": [RIGHT + "\n\ndef my_norm_probe():\n    return 1"],
}  # fmt: skip
RIGHTS = {label: (json.dumps(stored([SET_UP, *cells])).encode(), PASSES) for label, cells in FORMS.items()} | FILES
RIGHTS = {label: data for label, (data, wanted) in RIGHTS.items() if wanted == PASSES}


def credited(folder):
    with redirect_stdout(io.StringIO()):
        return my_parts(folder).own


@pytest.fixture
def new(tmp_path):
    """A handed-out folder as it is new; of its notebook the first cells and the exercises, which is faster."""
    notebook = handed_out()
    exercises = [cell for cell in notebook["cells"] if "exercise" in cell["metadata"].get("tags", [])]
    write(tmp_path / "new" / "notebooks" / f"{NORM}.ipynb", notebook | {"cells": notebook["cells"][:5] + exercises})
    return tmp_path / "new"


@pytest.mark.parametrize("label", RIGHTS)
def test_an_answer_that_was_right_before_is_right_after(label, new, tmp_path):
    old = tmp_path / "old" / f"{NORM}.ipynb"
    old.parent.mkdir()
    old.write_bytes(RIGHTS[label])
    assert update.update(new, old)
    assert credited(new / "notebooks") == ["rms_norm"]
    assert old.read_bytes() == RIGHTS[label]


def test_an_answer_above_a_fresh_copy_of_all_cells_is_named_as_put_back(new, tmp_path, capsys):
    old, fresh = tmp_path / f"{NORM}.ipynb", handed_out()
    write(old, fresh | {"cells": [code_cell(SET_UP), code_cell(RIGHT + CHECK), *fresh["cells"]]})
    assert update.update(new, old)
    assert "my_rms_norm put back. " in capsys.readouterr().out
    assert RIGHT + CHECK in sources(new / "notebooks" / f"{NORM}.ipynb")


def test_an_answer_and_what_it_needs_come_as_they_were_written_and_a_check_that_is_missing_behind(new, tmp_path):
    old = tmp_path / f"{NORM}.ipynb"
    write(old, stored([SET_UP, HELP, BY_HELP]))
    update.update(new, old)
    cells = sources(new / "notebooks" / f"{NORM}.ipynb")
    place = cells.index(HELP)
    assert cells[place + 1 : place + 3] == [BY_HELP, f"from checks import check_rms_norm\n{CHECK.strip()}"]


@pytest.mark.parametrize("name", ["homework.ipynb", "01_rmsnorm.ipynb.txt", "01_rmsnorm.ipynb.json", "NORM.IPYNB"])
@pytest.mark.parametrize("alone", [True, False])
def test_a_file_is_found_whatever_it_is_called_alone_and_in_a_folder(alone, name, new, tmp_path):
    write(tmp_path / "old" / name, stored([RIGHT + CHECK]))
    assert credited(tmp_path / "old") == ["rms_norm"]
    write(tmp_path / "old" / "empty.ipynb", "")
    write(tmp_path / "old" / "other.ipynb", stored(["print(1)"]))
    assert update.update(new, tmp_path / "old" / (name * alone)) == alone
    assert credited(new / "notebooks") == ["rms_norm"]


def test_of_two_answers_that_of_the_file_saved_last_is_taken_and_the_other_named(new, tmp_path, capsys):
    for age, (name, body) in enumerate({f"{NORM} (1)": "x", NORM: "-x", "again": "+x"}.items()):
        path = tmp_path / "old" / f"{name}.ipynb"
        write(path, stored([f"{HEAD}    return {body}", "def my_norm_probe():\n    return 1"]))
        os.utime(path, (time.time() - 1000 * age,) * 2)
    assert not update.update(new, tmp_path / "old")
    assert f"{HEAD}    return x" in sources(new / "notebooks" / f"{NORM}.ipynb")
    said = capsys.readouterr().out
    kept = "my_norm_probe put back; not put back: my_rms_norm (the exercise holds another answer)."  # equal: one
    assert (said.count("my_rms_norm, my_norm_probe put back. "), said.count(kept)) == (1, 2)


def test_one_broken_notebook_costs_only_itself_in_both_folders_and_is_named(new, tmp_path, monkeypatch, capsys):
    for number, name in enumerate("abc", 2):
        write(new / "notebooks" / f"0{number}_x.ipynb", stored([STUB.format(name)]))
        write(tmp_path / "old" / f"0{number}_x.ipynb", stored([ANSWER.format(name)]))
    write(new / "notebooks" / "02_x.ipynb", "<<<<<<< HEAD")
    (tmp_path / "old" / "05_x.ipynb").write_bytes("{}".encode("utf-16"))
    write(tmp_path / "old" / "06_x.ipynb", stored([STUB.format("f")]))
    write(tmp_path / "old" / "03_x.ipynb", "")
    monkeypatch.setattr(update, "ROOT", new)
    with pytest.raises(SystemExit, match="Not every answer of yours is in the notebooks"):
        update.main(["--from", str(tmp_path / "old")])
    said = capsys.readouterr().out
    left, same, came = (path.read_text() for path in sorted(new.glob("notebooks/0[2-4]*")))
    assert (left, same) == ("<<<<<<< HEAD", json.dumps(stored([STUB.format("b")])))
    assert "mine: c" in came
    for words in (
        "old/03_x.ipynb: cannot be read, and is left out: it is empty, so it cannot be opened: hand in a good copy.",
        "new/notebooks/02_x.ipynb: cannot be read, and is left out: it holds git's conflict marks, <<<<<<< and >>>>>>>",
        "old/05_x.ipynb: cannot be read, and is left out: it is stored as UTF-16",
        "not put back: my_a (no notebook here",
    ):
        assert words in said
    assert "06_x" not in said  # nothing was written in it
    assert "Up to date" not in said


@pytest.mark.parametrize(("kind", "source", "words"), [
    ("markdown", RIGHT, "It is a text cell: Esc, then Y, makes it code"),
    ("code", f"{HEAD}    return (x", r"Code cell \d+ .*is not Python"),
])  # fmt: skip
def test_an_answer_in_a_text_cell_or_not_in_python_is_named(new, tmp_path, capsys, kind, source, words):
    old, notebook = tmp_path / f"{NORM}.ipynb", handed_out()
    (cell,) = (cell for cell in notebook["cells"] if "".join(cell["source"]) == NORM_STUB)
    cell.update(cell_type=kind, source=source)
    write(old, notebook)
    assert not update.update(new, old)
    assert re.search(rf"my_rms_norm \({words}", capsys.readouterr().out)


OLD_NAMES = {  # imports of older versions, in a cell that an answer needs or inside it, and what they are now
    "from helpers.explorers import explore_rms_norm": "from explorers import explore_rms_norm",
    "import helpers.families\nf = helpers.families.FAMILIES": "import beyond.families\nf = beyond.families.FAMILIES",
    "from helpers import fast_decode": "from beyond import fast_decode",
    "from helpers.parallel import split_model": "from beyond.parallel import split_model",
    "from helpers.experiments.circuit import LeakyLlama": "from explorers.circuit import LeakyLlama",
    "from helpers.experiments.colleague import Colleague": "from explorers.leaky import LeakyLlama as Colleague",
    "from helpers.experiments.colleague import Colleague as C": "from explorers.leaky import LeakyLlama as C",
}  # fmt: skip


@pytest.mark.parametrize("before", OLD_NAMES)
def test_what_imports_an_old_name_is_put_back_with_the_new_one(before, new, tmp_path):
    old, last = tmp_path / f"{NORM}.ipynb", "f" if "f =" in before else before.split()[-1]
    inside = before.replace("\n", "\n    ")
    write(old, stored([f"1\n{before}", f"def mine():\n    return {last}", f"{HEAD}    {inside}\n    return mine()"]))
    assert update.update(new, old)
    cells = sources(new / "notebooks" / f"{NORM}.ipynb")
    assert any(OLD_NAMES[before] in cell for cell in cells if "def my_rms_norm" not in cell)
    assert f"    {OLD_NAMES[before]}".replace("\n", "\n    ") in next(
        cell for cell in cells if "def my_rms_norm" in cell
    )


def test_an_answer_whose_constant_a_newer_cell_changes_is_left_with_the_reason(new, tmp_path, capsys):
    path = new / "notebooks" / f"{NORM}.ipynb"
    fresh = json.loads(path.read_text(encoding="utf-8"))
    at = next(n for n, cell in enumerate(fresh["cells"]) if "def my_rms_norm" in "".join(cell["source"]))
    fresh["cells"][at:at] = map(code_cell, ("SCALE = 1.0", "SCALE = 3.0"))
    write(path, fresh)
    write(tmp_path / f"{NORM}.ipynb", stored([SET_UP, "SCALE = 1.0", RIGHT.replace("+ eps", "+ eps * SCALE") + CHECK]))
    assert not update.update(new, tmp_path / f"{NORM}.ipynb")
    assert "not put back: my_rms_norm (a cell here changes what it needs). All" in capsys.readouterr().out


def test_what_is_no_folder_of_notebooks_is_named(new, monkeypatch):
    monkeypatch.setattr(update, "ROOT", new)
    with pytest.raises(SystemExit, match=r"update: .*out\.py: neither a folder with notebooks of the course nor one"):
        update.main(["--from", str(new / "out.py")])
