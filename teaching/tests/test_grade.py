"""Every row of the table is accounted for, whatever is handed in, and no student's program reaches the machine.

One run grades a class of broken submissions, so that the file stays quick: each exercise that is run costs a kernel.
"""

import contextlib
import csv
import html
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest

import checks
from teaching.classroom import grade, report, sandbox, sandbox_reader
from tests.support.submissions import COURSE, NORM, NORM_RIGHT, WRONG_HINT, WRONG_NORM, handed_out, solved, write
from tools import hand_out

ALL_RUN = r"\d+ of \d+: "  # where in the queue an exercise stood
SECONDS = 20.0  # for an exercise; the function alone gets half of it
PAGE = (COURSE.parent / "docs" / "teaching.md").read_text(encoding="utf-8")


def run_main(folder, *more):
    """The rows of the table that the grader writes beside a folder, without a sandbox."""
    grade.main([str(folder), "--no-isolation", *more])
    return rows_of(folder)


def rows_of(folder, name="exercises.csv"):
    """The rows of a table that the last run wrote."""
    *_, results = sorted(folder.parent.glob(f"{folder.name}_graded*"))
    with open(results / name, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


POISON = """
import sys, types, torch
import checks
fake = types.ModuleType("checks")
fake.check_rms_norm = lambda function, seconds=0: types.SimpleNamespace(status="passed", message="", hint="")
POISON = [setattr(checks.CheckResult, "status", "passed"), setattr(checks, "_judge", lambda *a: None)]
POISON += [sys.modules.__setitem__("checks", fake), setattr(checks, "check_rms_norm", fake.check_rms_norm)]


def my_norm_probe(poison=POISON):
    print('["passed"]')
    return checks.CheckResult("my_norm_probe", "passed", "")
"""
SPAWN = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(314.159)"])
"""
STUB = "as it was handed out"
NOISE = 'NOISE = [print("x" * 10**6) for _ in range(30)]\n\n\n'
STUDENTS = {  # where the notebook lies; for each exercise what is written into it, the status, and words of the row
    "right": ("right.zip", (NORM_RIGHT["my_rms_norm"], "passed", "agrees"), (STUB, "not attempted", "handed out"),
              (NORM_RIGHT["my_rms_norm_backward"], "passed", "agrees")),
    "wrong": (f"wrong__{NORM}.ipynb", (WRONG_NORM, "not yet", WRONG_HINT),
              ("def my_norm_probe():\n    while True:\n        pass", "timed out", "loop that never ends"),
              (None, "no such function", "deleted or the function renamed")),
    "noise, poison, dies": (
        "", (NOISE + NORM_RIGHT["my_rms_norm"].replace("eps):", "eps, noise=NOISE):"), "passed", "agrees"),
        (POISON, "not yet", "is CheckResult"),
        ("import os\n\n\ndef my_rms_norm_backward(*a):\n    os._exit(0)", "crashed", "the kernel")),
    "never yields, quits, input": (
        "", ("def my_rms_norm(x, weight, eps):\n    return x + sum(range(10**14))", "timed out",
             f"No answer after {SECONDS:g} seconds"),
        ("def my_norm_probe():\n    raise SystemExit", "not yet", "neither exit nor interrupt"),
        ("def my_rms_norm_backward(*a):\n    return input('eps? ')", "not yet", "it raises")),
    "spawns, unclosed, exit": (
        "", (SPAWN + NORM_RIGHT["my_rms_norm"].replace("eps):", "eps, child=child):"), "passed", "agrees"),
        ("def my_norm_probe():\n    return set(model.mean(-1)\n", "does not run", "was never closed"),
        ("import sys\n\n\ndef my_rms_norm_backward(*a, out=sys.exit(0)):\n    return x", "does not run", "SystemExit")),
    "renamed": (f"renamed/{NORM} (1).ipynb", (WRONG_NORM, "not yet", ""), *[(STUB, "not attempted", "")] * 2),
    "not json": ("", *[("{", "broken notebook", "It is no notebook")] * 3),
    "link": (None, *[(STUB, "broken notebook", "a link")] * 3),
    "folder": (None, *[(STUB, "broken notebook", "a folder")] * 3),
    "empty": ("empty/my essay.ipynb", *[("{}", "missing notebook", "under the name")] * 3),
    "caf\\udce9": (None, *[(STUB, "missing notebook", "")] * 3),
}  # fmt: skip


def make_class(folder):
    """The submissions of STUDENTS to notebook 01."""
    for name, (where, *exercises) in STUDENTS.items():
        answers = [answer for answer, *_ in exercises]
        book = solved({own: text for own, text in zip(NORM_RIGHT, answers, strict=True) if text != STUB})
        if where == "right.zip":
            folder.mkdir(exist_ok=True)
            with zipfile.ZipFile(folder / where, "w") as archive:
                archive.writestr(f"handout/notebooks/{NORM}.ipynb", json.dumps(book))
        elif where is not None:
            write(folder / (where or f"{name}/{NORM}.ipynb"), answers[0] if answers[0] in ("{", "{}") else book)
    for name in ("link", f"folder/{NORM}.ipynb", os.fsdecode(b"caf\xe9")):
        (folder / name).mkdir(parents=True)
    (folder / "link" / f"{NORM}.ipynb").symlink_to(COURSE / f"{NORM}.ipynb")
    write(folder / "renamed" / f"{NORM}.ipynb", handed_out())
    os.utime(folder / "renamed" / f"{NORM}.ipynb", (1e9, 1e9))


def picture_of(folder):
    """Everything that could change in a folder."""
    return sorted((str(path), path.lstat().st_mtime_ns, path.lstat().st_mode) for path in folder.rglob("*"))


def commands(place):
    """The lines of the page's first part, {verb: arguments}, with its folders moved below `place`."""
    part = PAGE[PAGE.index("## Monday to Friday") : PAGE.index("## Before the first class")]
    lines = re.findall(r'^ {4}make (\w+) FOLDER=(\S+)(?: +ARGS="(.*)")?', part, re.M)
    return {verb: [folder.replace("..", str(place)), *more.split()] for verb, folder, more in lines}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The page's week: notebooks are handed out, the whole class is graded."""
    place = tmp_path_factory.mktemp("week")
    run, folder = commands(place), place / "handed-in"
    hand_out.main(["student", *run["student"]])
    make_class(folder)
    before, isolated = picture_of(folder), sandbox.find_sandbox()[0] is not None
    with contextlib.redirect_stdout(io.StringIO()) as said:
        grade.main([*run["grade"], "--seconds", str(SECONDS), *([] if isolated else ["--no-isolation"])])
    rows = rows_of(folder)
    of = {name: [row for row in rows if row["student"] == name] for name in STUDENTS}
    return SimpleNamespace(place=place, before=before, rows=rows, of=of, said=said.getvalue(), isolated=isolated)


@pytest.mark.slow
def test_each_fault_is_named_and_costs_its_exercise_and_no_other(graded):
    assert sum(map(len, graded.of.values())) == len(graded.rows)
    for name, (_, *exercises) in STUDENTS.items():
        for row, (_, status, words) in zip(graded.of[name], exercises, strict=True):
            assert (row["status"], words in f"{row['seen']} {row['hint']}") == (status, True), (name, row)
    slow = [float(row["seconds"]) for row in graded.rows if row["status"] == "timed out"]
    assert all(SECONDS / 2 <= seconds < SECONDS + 100 for seconds in slow)  # with the start of a kernel
    for who, number, status in (("not json", 1, "broken notebook"), ("wrong", 2, "timed out")):  # run or not
        assert re.search(rf"^({ALL_RUN})?{who}, {NORM}, {number}\. .*: {status}$", graded.said, re.M)


@pytest.mark.slow
def test_students_get_pages_the_teacher_the_commonest_mistakes_and_nothing_else_is_left(graded):
    results, n = graded.place / "handed-in_graded", len(STUDENTS)
    pages = {path.name: path.read_text(encoding="utf-8") for path in (results / "feedback").iterdir()}
    assert len(pages) == n
    assert not any("isolat" in page for page in pages.values())
    assert "2 of 3 exercises passed.</p>\n<p>1 of 2 points" in pages["right.html"]
    assert "<b>→     return set(model.mean(-1)</b>" in pages["spawns, unclosed, exit.html"]  # what was never closed
    assert "while True" in pages["wrong.html"]
    assert "<li>my essay.ipynb" in pages["empty.html"]
    twice = f"renamed: {NORM} was handed in 2 times: renamed/{NORM} (1).ipynb counts, not renamed/{NORM}.ipynb."
    assert twice in graded.said
    page = (results / "class.html").read_text(encoding="utf-8")
    assert f"Graded {'in isolation (bubblewrap)' if graded.isolated else 'without isolation'}" in page
    assert f"<b>2 of {n}</b>, 01 exercise 1" in page
    assert f"<b>1 of {n}</b>" not in page  # one student's mistake is not the class's
    assert re.search(rf"{re.escape(html.escape(WRONG_HINT))}.*\n.*renamed.*wrong", page)
    handout = graded.place / "handout" / "notebooks" / f"{NORM}.ipynb"
    assert json.loads(handout.read_text(encoding="utf-8")) == handed_out()  # what the class solves
    assert picture_of(graded.place / "handed-in") == graded.before
    assert {path.name for path in graded.place.iterdir()} == {"handout", "handed-in", "handed-in_graded"}
    assert sys.modules["checks"] is checks
    left = [one for one in psutil.process_iter(["cmdline"]) if "time.sleep(314.159)" in str(one.info["cmdline"])]
    assert psutil.wait_procs(left, timeout=60)[1] == []


def handed_in(place, answers):
    write(place / "handed in" / "anna" / f"{NORM}.ipynb", solved(answers))
    return place / "handed in"


def test_a_fault_of_the_grader_is_not_the_students_and_no_isolation_is_said_before(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(grade, "fresh_kernel", Mock(side_effect=OSError(28, "No space left on device")))
    row = run_main(handed_in(tmp_path, {"my_rms_norm": WRONG_NORM}))[0]
    assert (row["status"], row["seen"]) == ("not graded", "OSError: [Errno 28] No space left on device")
    assert capsys.readouterr().out.startswith("NOT ISOLATED: programs run as you")


@pytest.mark.parametrize(("more", "words"), [
    (["--seconds", "0"], "must be above 0"),
    (["--only", "98"], "no notebook of the course begins with 98"),
    (["--only", "01.9"], "01_rmsnorm has no exercise 9; it has 1, 2, 3"),
])  # fmt: skip
def test_a_wrong_command_says_so_before_anything_runs(tmp_path, monkeypatch, capsys, more, words):
    folder = handed_in(tmp_path, NORM_RIGHT)
    monkeypatch.setattr(grade, "run_exercise", None)  # it would fail
    with pytest.raises(SystemExit) as stopped:
        run_main(folder, *more)
    assert words in " ".join(f"{stopped.value} {capsys.readouterr().err}".split())
    assert [*tmp_path.iterdir()] == [folder]


@pytest.mark.parametrize("said", [None, "passed", ["sure", "", ""], ["passed", "fine"], ["passed", "fine", 1]])
def test_only_a_verdict_counts(said):
    assert grade._verdict({"status": "ok", "verdict": said})[0] == "not graded"
    assert grade._verdict({"status": "ok", "verdict": ["passed", "fine", ""]}) == ("passed", "fine", "")


FORGE = """
import json, sys, threading, time, os


def forge(main=sys._getframe()):
    while main.f_back:
        main = main.f_back
    while True:
        time.sleep(0.001)
        for frame in [*sys._current_frames().values()]:
            while frame:
                asked = frame.f_locals.get("question")
                if isinstance(asked, dict) and "check" in asked:
                    reply = {"id": asked.get("id"), "reply": {"status": "ok", "verdict": ["passed", "forged", ""]}}
                    for number in range(3, 30):
                        try:
                            os.write(number, json.dumps(reply).encode() + b"\\n")
                        except OSError:
                            pass
                frame = frame.f_back


thread = threading.Thread(target=forge, daemon=True)
thread.start()


def my_rms_norm(x, weight, eps, thread=thread):
    return x
"""
DECEIVE = {  # programs that once made a wrong answer pass
    "json": """
import json
was, right = json.dumps, ["passed", "agrees", ""]
PATCH = setattr(json, "dumps", lambda said: was([said[0], *right] if type(said) is list else said | {"verdict": right}))


def my_rms_norm(x, weight, eps, patch=PATCH, json=json, was=was, right=right):
    return x
""",
    "importlib": """
import importlib.util
import types
FAKE = types.SimpleNamespace(status="passed", message="fine", hint="")
LOADER = types.SimpleNamespace(create_module=lambda spec: None, exec_module=lambda module: setattr(
    module, "check_rms_norm", lambda *given, **more: FAKE))
PATCH = setattr(importlib.util, "spec_from_file_location", lambda name, *given, **more:
    importlib.machinery.ModuleSpec(name, LOADER))


def my_rms_norm(x, weight, eps, patch=PATCH):
    return x
""",
    "threading": FORGE,
}


@pytest.mark.slow
@pytest.mark.parametrize("means", DECEIVE)
def test_a_program_that_deceived_the_grader_once_fails_and_is_named(tmp_path, means):
    folder = handed_in(tmp_path, {"my_rms_norm": DECEIVE[means]})
    row = run_main(folder, "--only", "01.1", "--seconds", "20")[0]
    assert (row["status"], means in row["look_at"]) == ("not yet", True), row
    assert "read it, since such code can change what its check says" in row["look_at"]


@pytest.mark.parametrize(("code", "named"), [
    ("def f(x):\n    return torch.sys.modules", ["sys"]),
    ("import torch as t\ndef f(x):\n    t.Tensor.mean = x\n    x.mine = 1", ["t.Tensor.mean = ..."]),
    ("from helpers import os\nimport gc as g", ["gc", "os"]),
    ("def f(x):\n    return f.__globals__[vars(x.__class__)]", ["__class__", "__globals__", "vars"]),
    ("def f(x, frame=None):\n    return frame.f_back", ["f_back"]),
    ("import torch, math\nclass A:\n    def __init__(self):\n        super().__init__()\n        self.x = 1", []),
])  # fmt: skip
def test_what_an_answer_reaches_for_is_named(code, named):
    assert sandbox_reader.reaches(code) == named


def passes(*_):
    """In place of `run_exercise`: every answer passes, and nothing is run."""
    return "passed", "", ""


def test_a_stopped_run_writes_what_it_graded_and_every_run_has_a_folder_of_its_own(tmp_path, monkeypatch, capsys):
    folder, results = handed_in(tmp_path, NORM_RIGHT), tmp_path / "handed in_graded"

    def run(exercise, *_):
        if exercise.function == list(NORM_RIGHT)[-1]:
            raise KeyboardInterrupt
        return passes() if exercise.function == next(iter(NORM_RIGHT)) else ("crashed", "beside others: run again", "")

    monkeypatch.setattr(grade, "run_exercise", run)
    with pytest.raises(SystemExit, match=rf"stopped.* in {re.escape(str(results))}\.$"):
        run_main(folder, "--jobs", "2")
    assert [row["status"] for row in rows_of(folder)] == ["passed", "not graded", "not graded"]
    write(results / "grades.csv", "my points\n")
    before = picture_of(results)
    monkeypatch.setattr(grade, "run_exercise", passes)
    assert {row["status"] for row in run_main(folder)} == {"passed"}
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{results}_2: class.html, grades.csv")
    assert picture_of(results) == before
    monkeypatch.setattr(type(results), "exists", lambda path: False)  # as two runs at once may see it
    assert report.new_folder(folder).name == "handed in_graded_3"


STOPPED = """
import os, signal, sys, time
from teaching.classroom import grade

def run(exercise, *_):
    if exercise.function == "my_norm_probe":
        os.kill(os.getpid(), sys.argv.pop())  # to the process, as from outside: its main thread hears it
        time.sleep(2)  # and begins no other exercise
    return "passed", "", ""

sys.argv[-1] = getattr(signal, sys.argv[-1])
grade.run_exercise = run
grade.main([sys.argv[1], "--no-isolation"])
"""


@pytest.mark.parametrize("end", ["SIGTERM", "SIGHUP", "SIGINT", "SIGKILL"])
def test_whatever_ends_a_run_what_was_graded_is_kept(tmp_path, end):
    folder = handed_in(tmp_path, NORM_RIGHT)
    (tmp_path / "tmp").mkdir()
    command, own = [sys.executable, "-c", STOPPED, folder, end], os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    ended = subprocess.run(command, cwd=COURSE.parent, env=own, capture_output=True, text=True, timeout=300)
    rows = [(row["exercise"][0], row["status"], row["seen"]) for row in rows_of(folder)]
    assert rows[0] == ("1", "passed", "The check passed.")
    assert "1 of 3: anna, 01_rmsnorm, 1. " in ended.stdout
    assert not [*(tmp_path / "tmp").iterdir()] or end == "SIGKILL"
    written = {path.name for path in (tmp_path / "handed in_graded").iterdir()}
    if end == "SIGKILL":  # as if the power had gone
        assert (ended.returncode, len(rows), written) == (-signal.SIGKILL, 1, {"exercises.csv"})
        return
    assert (ended.returncode, "grade: stopped. What was not reached is" in ended.stderr) == (1, True), ended.stderr
    assert [status for _, status, _ in rows[2:]] == ["not graded"]
    assert written == {"exercises.csv", "grades.csv", "class.html", "feedback"}


@pytest.mark.parametrize(("jobs", "wanted"), [("2", ["passed", "not yet"]), ("1", ["crashed", "not graded"])])
def test_what_others_took_the_memory_from_is_graded_again_alone(tmp_path, monkeypatch, jobs, wanted):
    first = {"my_rms_norm": "crashed", "my_norm_probe": "not graded"}
    then = {"my_rms_norm": "passed", "my_norm_probe": "not yet"}

    def run(exercise, *_):
        status = first.pop(exercise.function, None) or then[exercise.function]
        return status, "The machine has no memory left." if status in ("crashed", "not graded") else "", ""

    monkeypatch.setattr(grade, "run_exercise", run)
    folder = handed_in(tmp_path, {name: NORM_RIGHT[name] for name in then})
    assert [row["status"] for row in run_main(folder, "--jobs", jobs)][:2] == wanted


def test_only_what_somebody_handed_in_counts_and_a_gradebook_has_a_line_for_each_student(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(grade, "run_exercise", passes)
    folder, long = handed_in(tmp_path, {name: NORM_RIGHT[name] for name in ("my_rms_norm", "my_norm_probe")}), "z" * 255
    write(folder / "ben" / "essay.ipynb", "{}")
    (folder / long).mkdir()
    run_main(folder)
    rows, nothing = rows_of(folder, "grades.csv"), ["0", "2", "0", "3", *["missing notebook"] * 3]
    asked = [f"01 exercise {number}" for number in range(1, 4)]
    assert list(rows[0]) == ["student", "points", "points possible", "passed", "exercises", *asked]
    assert [list(row.values()) for row in rows] == [
        ["anna", "1", "2", "2", "3", "passed", "passed", "not attempted"],
        ["ben", *nothing], [long, *nothing],
    ]  # fmt: skip
    for name in ("grades.csv", "exercises.csv"):  # Excel takes a file without this mark for one of another alphabet
        assert (folder.with_name("handed in_graded") / name).read_bytes().startswith(b"\xef\xbb\xbf")
    said = capsys.readouterr().out
    assert "Handed in nothing that counts: ben, zzz" in said
    assert "ben: ben/essay.ipynb" in said
    assert "zzz gets no page of feedback: [Errno " in said  # its name is too long for a file, which costs no other
    assert {path.name for path in tmp_path.glob("*_graded/feedback/*")} == {"anna.html", "ben.html"}
    rows = run_main(folder, "--only", "02.2", "02.3")
    assert [(row["exercise"][0], row["status"]) for row in rows] == 3 * [(one, "missing notebook") for one in "23"]
    shutil.rmtree(folder / "anna")
    with pytest.raises(SystemExit, match="no notebook of the course with exercises was handed in"):
        run_main(folder)


def test_the_same_error_on_two_lines_is_one_mistake_of_the_class(tmp_path, monkeypatch):
    folder, lines = handed_in(tmp_path, NORM_RIGHT), iter(range(9))
    write(folder / "ben" / f"{NORM}.ipynb", solved({name: f"{text}\n" for name, text in NORM_RIGHT.items()}))
    seen = "NameError: q (line {}) | q + 1"
    monkeypatch.setattr(grade, "run_exercise", lambda *_: ("does not run", seen.format(next(lines)), "Mend the line."))
    run_main(folder)
    page = (tmp_path / "handed in_graded" / "class.html").read_text(encoding="utf-8")
    assert page.count("<q>NameError: q</q>") == page.count("<b>2 of 2</b>") == 3
