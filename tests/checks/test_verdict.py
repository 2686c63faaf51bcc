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
    for command, says in zip(commands, (None, "Yours is the first argument, unchanged."), strict=True):
        done = subprocess.run([sys.executable, *command.split()], cwd=folder, stdout=subprocess.PIPE, check=False)
        (found,) = json.loads(done.stdout)["exercises"]
        assert (done.returncode, found["exercise"], found["read_again"][:9]) == (1, "2. Turn the halves", "2.4 Which")
        assert found.get("the_check_says") == says
        assert found["in_numbers"][-2].startswith("yours ")
    for name in ("CLAUDE.md", "GEMINI.md", ".github/copilot-instructions.md"):
        assert "AGENTS.md" in (folder / name).read_text(encoding="utf-8")
    assert not (ROOT / "AGENTS.md").exists()


def test_exercises_are_numbered_as_their_headings_are():
    for path in (ROOT / "notebooks").glob("0[1-9]*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells).partition("\n## Solutions")[0]
        said = dict(re.findall(r"^### Exercise (\d+)\.(?:(?!### ).)*?^def (my_\w+)\(", text, re.M | re.S))
        found = verdict.exercises_of(read_notebook(path.read_bytes()))
        assert said == {str(number): function for number, _, function in found}


def test_each_exercise_sends_to_the_heading_that_teaches_it():
    for name, section in verdict.SECTION_OF.items():
        (path,) = (ROOT / "notebooks").glob(f"0{section[0]}_*.ipynb")
        headings = re.findall(r"^## (\d\.\d+ .*)", read_notebook(path.read_bytes()).texts, re.M)
        mend = f"in SECTION_OF of checks/verdict.py write other words of the heading that teaches {name}"
        assert len(verdict.taught_in(headings, name)) == 1, f"“{section}” of {headings}: {mend}"


def test_an_exercise_whose_function_cannot_be_read_stays_in_the_list(tmp_path):
    renamed = "No cell of a.ipynb makes my_rms_norm: was it renamed"
    for source, words in (("def my_rms_norm(x)\n    return x", "is not Python: "), ("!echo def my_rms_norm", renamed)):
        write(tmp_path / "a.ipynb", solved({"my_rms_norm": source}))
        notebook = read_notebook((tmp_path / "a.ipynb").read_bytes())
        assert verdict.exercises_of(notebook)[0] == (1, "rms_norm", "my_rms_norm")
        said = verdict.said_of(notebook, "rms_norm", "my_rms_norm", "a.ipynb", 10.0)
        assert said["status"] == "does not run"
        assert words in said["seen"]


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"cells": []}', '{"cells": [{"cell_type": "code"}]}'])
def test_where_no_verdict_can_be_given_json_says_why(tmp_path, capsys, text):
    write(tmp_path / "a.ipynb", text)
    write(tmp_path / "01.ipynb", solved({}))
    for command in (["a.ipynb"], ["no.ipynb"], ["."], ["01.ipynb", "--exercise", "4"]):
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
def test_a_hostile_cell_costs_its_exercise_and_no_other(tmp_path, cells, monkeypatch):
    monkeypatch.setattr(verdict, "START", 30.0)
    names = dict(zip(NORM_RIGHT, cells, strict=False))
    made = {name: f"{above}\ndef {name}(*inputs):\n    {body}" for name, (above, body, _) in names.items()}
    write(tmp_path / "a.ipynb", solved(NORM_RIGHT | made))
    judged = verdict.judge(tmp_path / "a.ipynb", seconds=3.0)
    for said, (*_, words) in zip(judged, cells, strict=False):
        assert words in f"{said['seen']} {said.get('hint')}"
    entries = verdict.verdict("a.ipynb", judged)["exercises"]
    assert [one["status"] == "passed" for one in entries] == [False, False, True]
    assert ["seen" in one for one in entries] == [True, False, False]
