"""The verdict for assistants: one JSON document in good time, whatever the notebook holds; and the guide to it."""

import json
import re
import subprocess
import sys

import pytest

from checks import verdict
from checks.notebook import read_notebook
from tests.support.course import ROOT
from tests.support.submissions import NORM_RIGHT, solved, write
from tools import hand_out


@pytest.mark.slow
def test_the_guides_commands_run_as_written_in_the_handed_out_folder(tmp_path):
    hand_out.student(folder := tmp_path / "out", only=["02"])
    wrong = {"my_apply_rope_halves": "def my_apply_rope_halves(x, cos, sin):\n    return x"}
    write(folder / "notebooks" / "02_rope.ipynb", solved(wrong, "02_rope"))
    commands = re.findall(r"^ {4}python (.*)$", (folder / "AGENTS.md").read_text(encoding="utf-8"), re.M)
    told = None, "Yours is the first argument, unchanged.", "Yours is the first argument, unchanged."
    for command, says, fold in zip(commands, told, ("Hint", "Hint", "First step"), strict=True):
        done = subprocess.run([sys.executable, *command.split()], cwd=folder, stdout=subprocess.PIPE, check=False)
        (found,) = json.loads(done.stdout)["exercises"]
        assert (done.returncode, found["exercise"], found["read_again"][:4]) == (1, "2. Turn the halves", "2.4 ")
        assert found.get("the_check_says") == says
        assert found["next_help"]["fold"] == fold
    for name in ("CLAUDE.md", "GEMINI.md", ".github/copilot-instructions.md"):
        assert "AGENTS.md" in (folder / name).read_text(encoding="utf-8")
    assert not (ROOT / "AGENTS.md").exists()


def test_exercises_are_numbered_as_their_headings_are():
    for path in (ROOT / "notebooks").glob("0[1-9]*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells).partition("\n## Solutions")[0]
        said = dict(re.findall(r"^### Exercise (\d+)\.(?:(?!### ).)*?^def (my_\w+)\(", text, re.M | re.S))
        assert said == {str(one["number"]): one["function"] for one in verdict.outline(path.read_bytes())}


LOST = {  # what stands in the cell of an exercise, and what is said of it
    "not Python": ("def my_rms_norm(x, weight, eps)\n    return x", " is not Python: "),
    "a file": ("%%writefile my.py\ndef my_rms_norm(x, weight, eps):\n    return x", "begins with %%writefile"),
    "prompts, not Python": (">>> def my_rms_norm(x)\n...     return x", " is not Python: "),
    "renamed": ("def my_norm(x, weight, eps):\n    return x", "No cell of a.ipynb makes my_rms_norm: was it renamed"),
    "shell": ("!echo def my_rms_norm", "No cell of a.ipynb makes my_rms_norm: was it renamed"),
}


@pytest.mark.parametrize("form", LOST)
def test_an_exercise_whose_function_cannot_be_read_stays_in_the_list(form, tmp_path):
    source, words = LOST[form]
    write(tmp_path / "a.ipynb", solved({"my_rms_norm": source}, extra=["import torch"]))
    data = (tmp_path / "a.ipynb").read_bytes()
    exercises = verdict.outline(data)
    assert [one["number"] for one in exercises] == [1, 2, 3]
    said = verdict._judged(read_notebook(data), exercises[0], "a.ipynb", 60.0)
    assert said["status"] == "does not run"
    assert words in said["seen"]


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"cells": []}', '{"cells": [{"cell_type": "code"}]}'])
def test_where_no_verdict_can_be_given_json_says_why(tmp_path, capsys, text):
    write(tmp_path / "a.ipynb", text)
    for command in (["a.ipynb"], ["no.ipynb"], ["--no"], ["a.ipynb", "--exercise", "0"]):
        assert verdict.main([str(tmp_path / command[0]), *command[1:]]) == 2
        assert list(json.loads(capsys.readouterr().out)) == ["error"]


HOSTILE = [  # of three notebooks, for two exercises: what is above a function, its body, words of what is said
    [("", "while True: pass", "no answer after"), ("", "return sum(range(10**14))", "had not answered")],
    [("", "return bytearray(2**33)", "it raises MemoryError"), ("import os", "os._exit(0)", "Python ended")],
    [("while True: ate = 1", "return ate", "does not end"),
     ("noise = print('{' * 10**8)", "return noise or print('{' * 10**7)", 'without "return"')],
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("cells", HOSTILE, ids=range(3))
def test_a_hostile_cell_costs_its_exercise_and_no_other(tmp_path, cells):
    names = dict(zip(NORM_RIGHT, cells, strict=False))
    made = {name: f"{above}\ndef {name}(*inputs):\n    {body}" for name, (above, body, _) in names.items()}
    write(tmp_path / "a.ipynb", solved(NORM_RIGHT | made))
    judged = verdict.judge(tmp_path / "a.ipynb", seconds=18.0)
    for (_, said), (*_, words) in zip(judged, cells, strict=False):
        assert words in f"{said['seen']} {said.get('hint')}"
    document = verdict.verdict("a.ipynb", judged)
    assert [one["status"] == "passed" for one in document["exercises"]] == [False] * 2 + [True]
