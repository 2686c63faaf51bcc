"""Every row of the table is accounted for, whatever is handed in, and no student's program reaches the machine.

One run grades a class of broken submissions, so that the file stays quick: each exercise that is run costs a kernel.
"""

import csv
import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import psutil
import pytest

import checks
from tests.support.submissions import (
    COURSE,
    EXERCISES,
    NORM,
    NORM_RIGHT,
    WRONG_HINT,
    WRONG_NORM,
    handed_out,
    solved,
    write,
)
from tools.classroom import grade, hand_out, isolate, report
from tools.classroom.submissions import read_course

SECONDS = 20.0  # for an exercise; the function alone gets half of it

# ------------------------------------------------------------------------------------------ making submissions

FAKE = "\nimport checks\nchecks.check_rms_norm = lambda function: print('my_rms_norm: passed.')\n"
POISON = """
import sys, types, torch
import checks
fake = types.ModuleType("checks")
fake.CheckResult = lambda *a: None
fake.check_rms_norm = lambda function, seconds=0: types.SimpleNamespace(status="passed", message="", hint="")
POISON = [sys.modules.__setitem__("checks", fake), setattr(checks, "check_rms_norm", fake.check_rms_norm)]
POISON += [setattr(checks.CheckResult, "status", "passed"), setattr(checks, "_judge", lambda *a: None)]


def mended_norm(x, weight, eps, poison=POISON):
    print('["passed"]')
    return checks.CheckResult("mended_norm", "passed", "")
"""
FILL = """
def my_rms_norm_backward(grad_y, x, weight, eps):
    open("filling", "wb").write(bytes(2**27))
"""
SPAWN = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(314.159)"])
"""
NOISE = 'NOISE = [print("x" * 10**6) for _ in range(30)]\n\n\n'


# right, although the set-up is gone, other cells are broken, a helper has a cell of its own, a magic stands about
ROUND_IT = [
    "raise RuntimeError('no')", "while True: pass", "%timeit 1", "def (", "input()", "x = %\\\n",
    "import os; os._exit(3)",
    "import math\n\n\ndef widen(x):\n    return x.float()\n\nEPS = {}\nfor name in ('more',):\n    EPS[name] = 0.0",
]  # fmt: skip
WITH_HELPER = NORM_RIGHT["my_rms_norm"].replace("x.float()", "widen(x) + EPS['more']")
ANGLE, BACKWARD = NORM_RIGHT["my_layer_norm_angle"], NORM_RIGHT["my_rms_norm_backward"]
STUDENTS = {  # what is written into the four exercises, their statuses, and words that the row holds
    "right": (
        {"my_rms_norm": WITH_HELPER, "my_rms_norm_backward": BACKWARD},
        ["passed", "not attempted", "not attempted", "passed"], ["agrees", "handed out", "handed out", "agrees"],
    ),
    "checks edited, loop, syntax, deleted": (
        {
            "my_rms_norm": WRONG_NORM + FAKE,
            "mended_norm": "def mended_norm(x, weight, eps):\n    while True:\n        pass",
            "my_layer_norm_angle": "def my_layer_norm_angle(x):\n    return torch.atan2(x.mean(-1)\n",
            "my_rms_norm_backward": None,
        },
        ["not yet", "timed out", "does not run", "no such function"],
        [WRONG_HINT, "loop that never ends", "was never closed", "deleted or the function renamed"],
    ),
    "noise, poison, exit, dies": (
        {
            "my_rms_norm": NOISE + NORM_RIGHT["my_rms_norm"].replace("eps):", "eps, noise=NOISE):"),
            "mended_norm": POISON,
            "my_layer_norm_angle": "import sys\n\n\ndef my_layer_norm_angle(x, way_out=sys.exit(0)):\n    return x",
            "my_rms_norm_backward": "import os\n\n\ndef my_rms_norm_backward(*a):\n    os._exit(0)",
        },
        ["passed", "not yet", "does not run", "crashed"], ["agrees", "type CheckResult", "SystemExit", "the kernel"],
    ),
    "input, fills, spawns, quits": (
        {
            "my_rms_norm": "def my_rms_norm(x, weight, eps):\n    return input('eps? ')",
            "mended_norm": "def mended_norm(x, weight, eps):\n    raise SystemExit",
            "my_layer_norm_angle": SPAWN + ANGLE.replace("(x):", "(x, child=child):"),
            "my_rms_norm_backward": FILL,
        },
        ["not yet", "not yet", "passed", "not yet"], ["it raises", "neither exit nor interrupt", "agrees", "OSError"],
    ),
    "never yields, cannot be read": (
        {
            "my_rms_norm": "def my_rms_norm(x, weight, eps):\n    return x + sum(range(10**14))",
            "mended_norm": "def mended_norm(x, weight, eps):\n    return " + "-" * 150_000 + "x",
            "my_layer_norm_angle": "def my_layer_norm_angle(x):\n    return '\0'",
            "my_rms_norm_backward": "def my_rms_norm_backward():\n    pass\n#" + "x" * 250_000,
        },
        ["timed out", "does not run", "does not run", "does not run"],
        [f"No answer after {SECONDS:g} seconds", "is not Python", "null bytes", "250,0"],
    ),
    "=stubs|[x](y)": ({}, ["not attempted"] * 4, ["handed out"] * 4),
}  # fmt: skip
BROKEN = {  # files that are no notebook, and words that the rows hold
    "not json": (b"{", "It is no notebook"), "a list": (b"[1]", "TypeError"), "no cells": (b"{}", "KeyError"),
    "deep": (b"[" * 100_000, "RecursionError"), "bytes": (b"\xff\xfe\x00", "UnicodeDecodeError"),
}  # fmt: skip


def make_class(folder):
    """Submissions of notebook 01; {student: (statuses, words that what is seen or the hint holds, per exercise)}."""
    expected = {}
    for name, (answers, *wanted) in STUDENTS.items():
        extra = {"extra": ROUND_IT, "keep_setup": False} if name == "right" else {}
        write(folder / name / f"{NORM}.ipynb", solved(answers, **extra))
        expected[name] = wanted
    for name in ("link", "folder", "empty", os.fsdecode(b"caf\xe9"), *BROKEN):
        (folder / name).mkdir()
    for name, (content, _) in BROKEN.items():
        (folder / name / f"{NORM}.ipynb").write_bytes(content)
    (folder / "link" / f"{NORM}.ipynb").symlink_to(COURSE / f"{NORM}.ipynb")
    (folder / "folder" / f"{NORM}.ipynb").mkdir()
    (folder / "linked").symlink_to(COURSE, target_is_directory=True)
    (folder / "empty" / "my essay.ipynb").write_text("{}")
    for place in (f"twice/deep/{NORM}", f"twice__{NORM}", f"flat_name__{NORM}", NORM):  # the last one is nobody's
        write(folder / f"{place}.ipynb", handed_out())
    for name, status, words in (
        *((name, "broken notebook", words) for name, (_, words) in BROKEN.items()),
        ("link", "broken notebook", "a link"), ("folder", "broken notebook", "a folder"),
        ("linked", "missing notebook", "under the name"), ("empty", "missing notebook", "under the name"),
        ("caf\\udce9", "missing notebook", ""), ("twice", "not attempted", "handed out"),
        ("flat_name", "not attempted", "handed out"),
    ):  # fmt: skip
        expected[name] = [status] * 4, [words] * 4
    return expected


def picture_of(folder):
    """Everything that could change in a folder."""
    return sorted((str(path), path.lstat().st_mtime_ns, path.lstat().st_mode) for path in folder.rglob("*"))


def isolated():
    return not isolate.why_not_isolated()


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """One run over the whole class."""
    place = tmp_path_factory.mktemp("class")
    folder = place / "handed in"
    folder.mkdir()
    expected, before = make_class(folder), picture_of(folder)
    flag = [] if isolated() else ["--no-isolation"]
    rows = run_main(folder, "--only", NORM, "--seconds", str(SECONDS), *flag)
    of = {name: [row for row in rows if row["student"].removeprefix("'") == name] for name in expected}
    return SimpleNamespace(folder=folder, before=before, expected=expected, rows=rows, of=of)


def run_main(folder, *more):
    """The rows of the table that the grader writes beside a folder."""
    grade.main([str(folder), *more])
    return rows_of(folder)


def rows_of(folder, name="exercises.csv"):
    with open(folder.with_name(f"{folder.name}_graded") / name, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


# ------------------------------------------------------------------------------------------------- grading


@pytest.mark.slow
def test_each_fault_is_named_and_costs_its_exercise_and_no_other(graded):
    assert len({(row["student"], row["exercise"]) for row in graded.rows}) == len(graded.rows)
    assert sum(map(len, graded.of.values())) == len(graded.rows)
    assert {row["status"] for row in graded.rows} == set(report.STATUSES) - {"not graded"}
    got = {name: [row["status"] for row in rows] for name, rows in graded.of.items()}
    assert got == {name: statuses for name, (statuses, _) in graded.expected.items()}
    missing = [
        (name, row["exercise"], word, row["seen"], row["hint"])
        for name, (_, words) in graded.expected.items()
        for row, word in zip(graded.of[name], words, strict=True)
        if word not in f"{row['seen']} {row['hint']}"
    ]
    assert missing == []
    slow = [float(row["seconds"]) for row in graded.rows if row["status"] == "timed out"]
    assert all(SECONDS / 2 <= seconds < SECONDS + 100 for seconds in slow)  # with the start of a kernel


def still_running():
    """Programs that students started and that do not end within a minute."""
    started = [one for one in psutil.process_iter(["cmdline"]) if "time.sleep(314.159)" in str(one.info["cmdline"])]
    return psutil.wait_procs(started, timeout=60)[1]


@pytest.mark.slow
def test_a_run_leaves_nothing_but_the_table_and_the_pages(graded):
    assert picture_of(graded.folder) == graded.before
    assert sorted(path.name for path in graded.folder.parent.iterdir()) == ["handed in", "handed in_graded"]
    assert sys.modules["checks"] is checks
    assert still_running() == []


@pytest.mark.slow
def test_every_student_gets_a_page(graded):
    place = graded.folder.parent / "handed in_graded" / "feedback"
    pages = {path.name: path.read_text(encoding="utf-8") for path in place.iterdir()}
    assert len(pages) == len(graded.expected)
    isolation = "in isolation (bubblewrap)" if isolated() else "without isolation"
    assert all(f"Graded {isolation}" in page for page in pages.values())
    assert "2 of 4 exercises passed." in pages["right.html"]
    assert "<li>my essay.ipynb" in pages["empty.html"]


# --------------------------------------------------------------------------------------- isolation, and refusals


def handed_in(place, answers, stem=NORM):
    write(place / "handed in" / "anna" / f"{stem}.ipynb", solved(answers, stem))
    return place / "handed in"


def stop_if_run(*_):
    raise AssertionError("a student's program would have been run")


def test_a_fault_of_the_grader_is_not_the_students_and_no_isolation_is_said_before(tmp_path, monkeypatch, capsys):
    folder = handed_in(tmp_path, {"my_rms_norm": WRONG_NORM})
    said = []

    def fail(*_):
        said.append(capsys.readouterr().out)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(grade, "fresh_kernel", fail)
    row = run_main(folder, "--no-isolation", "--only", "01")[0]
    assert (row["status"], row["seen"]) == ("not graded", "OSError: [Errno 28] No space left on device")
    assert said[0].startswith("NOT ISOLATED: programs run as you")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--seconds", "0"], "must be above 0"),
        (["--to", "{folder}/graded"], "where nothing is written"),
        (["--to", "{folder}/.."], "holds other things than results"),
        (["--to", "{folder}/../no/graded"], "lies in a folder that is not there"),
        (["--to", "{folder}/../damaged"], "has a damaged .graded.json: choose another place"),
        (["--only", "98"], "no notebook 98 with exercises; found: 01_rmsnorm"),
        (["--course", "{folder}"], "with exercises; found: none"),
    ],
)
def test_a_wrong_command_says_so_before_anything_runs(tmp_path, monkeypatch, capsys, more, words):
    folder = handed_in(tmp_path, NORM_RIGHT)
    write(tmp_path / "damaged" / report.MARKER, "{")
    monkeypatch.setattr(grade, "run_exercise", stop_if_run)
    with pytest.raises(SystemExit) as stopped:
        grade.main([str(folder), "--no-isolation", *(word.format(folder=folder) for word in more)])
    assert words in " ".join(f"{stopped.value} {capsys.readouterr().err}".split())


@pytest.mark.parametrize("said", ["None", "'passed'", '\'["other", "passed", "", ""]\''])
def test_only_the_checks_own_answer_counts(said):
    reply = {"status": "ok", "user_expressions": {"verdict": {"data": {"text/plain": said}}}}
    assert grade._verdict(reply, "mine")[0] == "not graded"
    reply["user_expressions"]["verdict"]["data"]["text/plain"] = '\'["mine", "passed", "fine", ""]\''
    assert grade._verdict(reply, "mine") == ("passed", "fine", "")


@pytest.fixture
def judge(monkeypatch):
    """A grader that runs nothing: it passes every answer, and notes whose function it was asked about."""
    asked = []

    def run(exercise, code, *_):
        asked.append(exercise.function)
        return ("passed", "", "") if WRONG_NORM[30:] not in code else ("not yet", "x", "Is eps in the root?")

    monkeypatch.setattr(grade, "run_exercise", run)
    return asked


def test_a_second_run_grades_what_changed_and_keeps_what_the_teacher_wrote(tmp_path, judge, capsys):
    folder, results = handed_in(tmp_path, NORM_RIGHT), tmp_path / "handed in_graded"
    run_main(folder, "--no-isolation")
    assert "0 of 4 answers unchanged since the last run, 4 graded." in capsys.readouterr().out
    first = rows_of(folder)
    (results / "grades.csv").write_text("my points\n")
    handed_in(tmp_path, NORM_RIGHT | {"mended_norm": WRONG_NORM.replace("my_rms_norm", "mended_norm")})
    del judge[:]
    second = run_main(folder, "--no-isolation")
    assert "3 of 4 answers unchanged since the last run, 1 graded." in (said := capsys.readouterr().out)
    assert judge == ["mended_norm"]
    assert [row for place, row in enumerate(second) if place != 1] == [
        row for place, row in enumerate(first) if place != 1
    ]
    assert "grades.csv was changed since the last run: it is kept as grades_kept_" in said
    assert [path.read_text() for path in results.glob("grades_kept_*.csv")] == ["my points\n"]
    run_main(folder, "--no-isolation")
    assert "kept as" not in capsys.readouterr().out


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path, monkeypatch):
    folder = handed_in(tmp_path, NORM_RIGHT)

    def run(exercise, *_):
        if exercise.function != "my_rms_norm":
            raise KeyboardInterrupt
        return "passed", "", ""

    monkeypatch.setattr(grade, "run_exercise", run)
    with pytest.raises(SystemExit, match="stopped"):
        run_main(folder, "--no-isolation")
    assert [row["status"] for row in rows_of(folder)] == ["passed", *["not graded"] * 3]
    monkeypatch.setattr(grade, "run_exercise", lambda exercise, *_: ("passed", exercise.function, ""))
    meaning = report.STATUSES["passed"][2]
    assert [row["seen"] for row in run_main(folder, "--no-isolation")] == [meaning, *list(EXERCISES)[1:]]


KILLED = """
import sys, time
from tools.classroom import grade

def run(exercise, *_):
    if exercise.function == "mended_norm":
        return "timed out", "", ""
    if exercise.function == "my_rms_norm_backward":
        print("killed here", flush=True)
        time.sleep(60)
    return "passed", "", ""

grade.run_exercise = run
grade.main(sys.argv[1:])
"""


def test_a_kill_loses_the_exercise_in_work_and_what_no_check_said_runs_again(tmp_path, judge):
    folder = handed_in(tmp_path, NORM_RIGHT)
    command = [sys.executable, "-c", KILLED, str(folder), "--no-isolation"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=COURSE.parent) as grading:
        assert any(line == "killed here\n" for line in grading.stdout)
        grading.kill()
    results = folder.with_name("handed in_graded")
    (results / ".1234.part").touch()  # a kill while it writes leaves one
    assert [row["status"] for row in run_main(folder, "--no-isolation")] == ["passed"] * 4
    assert judge == ["mended_norm", "my_rms_norm_backward"]


@pytest.mark.parametrize("status", ["timed out", "crashed", "does not run", "not graded"])
def test_what_may_be_the_machines_fault_is_not_remembered(tmp_path, monkeypatch, status):
    folder, asked = handed_in(tmp_path, {"my_rms_norm": WRONG_NORM}), []
    monkeypatch.setattr(grade, "run_exercise", lambda *_: asked.append(1) or (status, "", ""))
    for _ in range(2):
        run_main(folder, "--no-isolation")
    assert len(asked) == 2


def test_only_what_somebody_handed_in_counts_and_a_gradebook_has_a_line_for_each_student(tmp_path, judge, capsys):
    folder = handed_in(tmp_path, {name: NORM_RIGHT[name] for name in ("my_rms_norm", "mended_norm")})
    write(folder / "ben" / "essay.ipynb", "{}")
    (folder / "carl").mkdir()
    run_main(folder, "--no-isolation")
    asked = [f"01 exercise {number}" for number in range(1, 5)]
    counts = ["points", "points possible", "passed", "exercises"]
    rows = rows_of(folder, "grades.csv")
    assert list(rows[0]) == ["student", *counts, *asked]
    for name in ("grades.csv", "exercises.csv"):  # Excel takes a file without this mark for one of another alphabet
        assert (folder.with_name("handed in_graded") / name).read_bytes().startswith(b"\xef\xbb\xbf")
    assert [[row[name] for name in ("student", *counts)] for row in rows] == [
        ["anna", "1", "2", "2", "4"], ["ben", "0", "2", "0", "4"], ["carl", "0", "2", "0", "4"],
    ]  # fmt: skip
    assert {rows[1][name] for name in asked} == {"missing notebook"}
    said = capsys.readouterr().out
    for words in (
        "3 students; graded: 01_rmsnorm (name others with --only).", "ben: ben/essay.ipynb",
        "Handed in nothing that counts: ben, carl.", "Not understood, and not graded: 1.",
    ):  # fmt: skip
        assert words in said
    run_main(folder, "--no-isolation", "--only", "02")
    assert {row["status"] for row in rows_of(folder)} == {"missing notebook"}
    shutil.rmtree(folder / "anna")
    with pytest.raises(SystemExit, match="no notebook of the course with exercises was handed in"):
        run_main(folder, "--no-isolation")


PAGE = (COURSE.parent / "docs" / "teaching.md").read_text(encoding="utf-8")


def named(text):
    """(notebook, exercise) pairs of "01 exercise 2", "02 exercises 2, 3 and 4", "3 & 4", "1 to 3" and "1–3"."""
    for notebook, numbers in re.findall(r"\b(0\d)(?: \|)? [Ee]xercises? (\d(?:(?:, | and | & | to |[–-])\d)*)", text):
        for first, _, last in re.findall(r"(\d)(?:( to |[–-])(\d))?", numbers):
            yield from ((notebook, number) for number in range(int(first), int(last or first) + 1))


def test_every_way_to_name_exercises_is_understood():
    ways = ("02 exercises 2, 3 and 4", "02 exercises 2 to 4", "02 Exercises 2–4", "| 02 | exercises 2-3 & 4 |")
    assert [list(named(way)) for way in ways] == [[("02", 2), ("02", 3), ("02", 4)]] * len(ways)


def test_points_of_the_notebooks_are_the_homework_and_what_the_plan_asks_for():
    asked = [
        (one.notebook[:2], int(one.title[0]), one.points) for own, _ in read_course(COURSE).values() for one in own
    ]
    paid = [(notebook, number) for notebook, number, points in asked if points]
    homework = "\n".join(re.findall(r"^\| \[\d\]\(#class.*\|(.*)\|$", PAGE, re.M))
    assessment = PAGE[PAGE.index("## Assessment") :]
    assert sorted(named(homework)) == paid
    assert sorted(named(assessment.partition("\n- ")[0])) == paid
    answers = len(re.findall(r"\| question \d", assessment))
    assert f"{sum(points for *_, points in asked) + answers} points;" in assessment


# --------------------------------------------------------------------------- from Monday to Friday


def commands(place):
    """The lines of the page's first part, {verb: arguments}, with its folders moved below `place`."""
    part = PAGE[PAGE.index("## Monday to Friday") : PAGE.index("## Before the first class")]
    found = {}
    for line in re.findall(r"^ {4}make (.*)", part, re.M):
        *options, verb = sorted(shlex.split(line, comments=True), key=lambda word: "=" not in word)
        values = dict(option.split("=", 1) for option in options)
        found[verb] = [values["FOLDER"].replace("..", str(place)), *shlex.split(values.get("ARGS", ""))]
    return found


CRASH = "import os\n\n\ndef my_rms_norm(x, weight, eps):\n    os._exit(0)"
LOOP = "def my_rms_norm(x, weight, eps):\n    while True:\n        pass"
HOSTILE = "def my_rms_norm(x, weight, eps):\n    open('PLACE/handed-in/right/x', 'w')"
WEEK = {  # a student: where the notebook lies, what is in it, the status of exercise 1
    "right": (f"right/{NORM}.ipynb", NORM_RIGHT["my_rms_norm"], "passed"),
    "wrong": (f"wrong/{NORM}.ipynb", WRONG_NORM, "not yet"),
    "empty": ("empty/", None, "missing notebook"),
    "crashing": (f"crashing/{NORM}.ipynb", CRASH, "crashed"),
    "looping": (f"looping__{NORM}.ipynb", LOOP, "timed out"),
    "renamed": (f"renamed/{NORM} (1).ipynb", WRONG_NORM, "not yet"),
    "zipped": ("zipped.zip", NORM_RIGHT["my_rms_norm"], "passed"),
    "older": ("older/06_train_and_generate.ipynb", "", "missing notebook"),
    "twice": (f"twice/{NORM}-1.ipynb", NORM_RIGHT["my_rms_norm"], "passed"),
    "hostile": (f"hostile/{NORM}.ipynb", HOSTILE, "not yet"),
}


@pytest.mark.slow
def test_ten_students_from_handing_out_to_returning_with_the_pages_commands_alone(tmp_path, capsys):
    if not isolated():
        pytest.skip("bubblewrap does not work here; runs where it does")
    run, folder = commands(tmp_path), tmp_path / "handed-in"
    hand_out.main(["student", *run["student"]])
    fresh = json.loads((tmp_path / "handout" / "notebooks" / f"{NORM}.ipynb").read_text(encoding="utf-8"))
    assert fresh == handed_out()  # what the students below solve
    for where, answer, _ in WEEK.values():
        if where.endswith(".zip"):
            with zipfile.ZipFile(tmp_path / where, "w") as archive:
                archive.writestr(f"handout/notebooks/{NORM}.ipynb", json.dumps(solved({"my_rms_norm": answer})))
            shutil.move(tmp_path / where, folder / where)
        elif answer is None:
            (folder / where).mkdir(parents=True)
        else:
            stem = NORM if answer else "06_train"
            write(
                folder / where, solved({"my_rms_norm": answer.replace("PLACE", str(tmp_path))} if answer else {}, stem)
            )
    write(folder / "twice" / f"{NORM}.ipynb", solved({"my_rms_norm": WRONG_NORM}))
    os.utime(folder / "twice" / f"{NORM}.ipynb", (1e9, 1e9))
    before = picture_of(folder)
    grade.main([*run["grade"], "--seconds", str(SECONDS)])
    said = capsys.readouterr().out
    rows = {row["student"]: row for row in rows_of(folder, "grades.csv")}
    assert {name: row["01 exercise 1"] for name, row in rows.items()} == {name: s for name, (*_, s) in WEEK.items()}
    assert f"twice: {NORM} was handed in 2 times: twice/{NORM}-1.ipynb counts, not twice/{NORM}.ipynb." in said
    assert picture_of(folder) == before
    results = tmp_path / "handed-in_graded"
    assert {path.stem for path in (results / "feedback").iterdir()} == WEEK.keys()
    page = (results / "class.html").read_text(encoding="utf-8")
    assert page.index(f"<b>2 of {len(WEEK)}</b>, 01 exercise 1") < page.index(f"<b>1 of {len(WEEK)}</b>")
    assert re.search(rf"{re.escape(html.escape(WRONG_HINT))}.*\n.*renamed.*wrong", page)
    assert still_running() == []
