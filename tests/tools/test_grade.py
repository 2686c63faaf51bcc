"""The teacher's commands: every row is accounted for whatever is handed in, no solution is handed out, nothing is lost.

One run grades a class of broken submissions, so that the file stays quick: each exercise that is run costs a kernel.
"""

import contextlib
import csv
import inspect
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import pytest

import checks
from tests.support.right_answers import right_answer_to
from tests.support.wrong_answers import WRONG
from tools.classroom import grade, hand_out, submissions

ROOT = Path(__file__).parents[2]
COURSE = ROOT / "notebooks"
NORM = "01_rmsnorm"
NAMES = ("my_rms_norm", "mended_norm", "my_layer_norm_angle", "my_rms_norm_backward")  # the exercises of 01, in order
SECONDS = 15.0  # for an exercise; the function alone gets half of it

# ------------------------------------------------------------------------------------------ making submissions


def source_of(program, name):
    """The text of a program under the name that an exercise asks for."""
    text = inspect.getsource(program)
    return re.sub(rf"\b{program.__name__}\b", name, text[text.index("def ") :])


def right(exercise, name):
    return source_of(right_answer_to(exercise), name)


NORM_RIGHT = dict(
    zip(
        NAMES,
        [
            right("rms_norm", NAMES[0]),
            right("rms_norm", NAMES[1]),
            right("layer_norm_angle", NAMES[2]),
            right("rms_norm_backward", NAMES[3]),
        ],
        strict=True,
    )
)
WRONG_NORM = source_of(WRONG["rms_norm"]["eps_outside"][0], "my_rms_norm")
WRONG_HINT = WRONG["rms_norm"]["eps_outside"][1]


def handed_out(stem=NORM):
    return hand_out.without_solutions(json.loads((COURSE / f"{stem}.ipynb").read_text(encoding="utf-8")))


def solved(answers, stem=NORM, extra=(), keep_setup=True):
    """The notebook that is handed out, with these answers: {function: source of the cell, or None to delete it}."""
    notebook = handed_out(stem)
    cells, first = [], True
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        name = next((name for name in answers if re.search(rf"^def {name}\b", source, re.M)), None)
        is_setup = cell["cell_type"] == "code" and first
        first = first and cell["cell_type"] != "code"
        if (name and answers[name] is None) or (is_setup and not keep_setup):
            continue
        if name:
            cell["source"] = answers[name]
        cells.append(cell)
    notebook["cells"] = [code_cell(source) for source in extra] + cells
    return notebook


def code_cell(source):
    return {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], "execution_count": None}


def write(path, notebook):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(notebook if isinstance(notebook, str) else json.dumps(notebook), encoding="utf-8")


FAKE = """
import checks
from checks import CheckResult

checks.check_rms_norm = lambda function: CheckResult("my_rms_norm", "passed", "All is well.")
print("my_rms_norm: passed. my_rms_norm agrees with the specification in 12 cases.")
checks.check_rms_norm(my_rms_norm)
"""
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
FULL = []


def my_rms_norm_backward(grad_y, x, weight, eps):
    if FULL:
        raise FULL[0]
    try:
        with open("filling", "wb") as file:
            for _ in range(20):
                file.write(bytes(2**24))
                file.flush()
    except OSError as error:
        FULL.append(error)
        raise
"""
SPAWN = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(314.159)"])
"""
NOISE = """
NOISE = [print("x" * 10**6) for _ in range(30)]
"""


def make_class(folder):
    """Submissions of notebook 01; {student: (statuses, words that what is seen or the hint holds, per exercise)}."""
    angle = NORM_RIGHT["my_layer_norm_angle"]
    expected = {}

    def hand_in(student, answers, statuses, words, **more):
        write(folder / student / f"{NORM}.ipynb", solved(answers, **more))
        expected[student] = (statuses, words)

    # right, although the set-up is gone, other cells are broken, a helper has a cell of its own, a magic stands about
    table = "EPS = {}\nfor name in ('more', 'most'):\n    EPS[name] = 0.0"
    helper = "import math\n\n\ndef widen(x):\n    return x.float()\n\n" + table
    extra = [
        "raise RuntimeError('no')",
        "while True: pass",
        "%timeit 1",
        "def (",
        "input()",
        "x = %\\\n",
        "import os; os._exit(3)",
        helper,
    ]
    with_helper = NORM_RIGHT["my_rms_norm"].replace("x.float()", "widen(x) + EPS['more']")
    assert "widen" in with_helper
    hand_in(
        "right",
        {"my_rms_norm": with_helper, "my_rms_norm_backward": NORM_RIGHT["my_rms_norm_backward"]},
        ["passed", "not attempted", "not attempted", "passed"],
        ["agrees", "handed out", "handed out", "agrees"],
        extra=extra,
        keep_setup=False,
    )
    hand_in(
        "checks edited, loop, syntax, deleted",
        {
            "my_rms_norm": WRONG_NORM + FAKE,
            "mended_norm": "def mended_norm(x, weight, eps):\n    while True:\n        pass",
            "my_layer_norm_angle": "def my_layer_norm_angle(x):\n    return torch.atan2(x.mean(-1)\n",
            "my_rms_norm_backward": None,
        },
        ["not yet", "timed out", "does not run", "no such function"],
        [WRONG_HINT, "loop that never ends", "was never closed", "deleted, or the function renamed"],
    )
    hand_in(
        "noise, poison, exit, dies",
        {
            "my_rms_norm": NOISE + NORM_RIGHT["my_rms_norm"].replace("eps):", "eps, noise=NOISE):"),
            "mended_norm": POISON,
            "my_layer_norm_angle": "import sys\n\n\ndef my_layer_norm_angle(x, way_out=sys.exit(0)):\n    return x",
            "my_rms_norm_backward": "import os\n\n\ndef my_rms_norm_backward(*a):\n    os._exit(0)",
        },
        ["passed", "not yet", "does not run", "crashed"],
        ["agrees", "type CheckResult", "SystemExit", "ended the kernel"],
    )
    hand_in(
        "input, fills, spawns, quits",
        {
            "my_rms_norm": "def my_rms_norm(x, weight, eps):\n    return input('eps? ')",
            "mended_norm": "def mended_norm(x, weight, eps):\n    raise SystemExit",
            "my_layer_norm_angle": SPAWN + angle.replace("(x):", "(x, child=child):"),
            "my_rms_norm_backward": FILL,
        },
        ["not yet", "not yet", "passed", "not yet"],
        ["it raises", "neither exit nor interrupt", "agrees", "OSError"],
    )
    hand_in(
        "never yields, cannot be read",
        {
            "my_rms_norm": "import re\n\n\ndef my_rms_norm(*a):\n    re.match('(a+)+$', 'a' * 60 + 'b')",
            "mended_norm": "def mended_norm(x, weight, eps):\n    return " + "-" * 150_000 + "x",
            "my_layer_norm_angle": "def my_layer_norm_angle(x):\n    return '\0'",
            "my_rms_norm_backward": "def my_rms_norm_backward():\n    pass\n#" + "x" * 250_000,
        },
        ["timed out", "does not run", "does not run", "does not run"],
        [f"No answer after {SECONDS:g} seconds", "is not Python", "null bytes", "250,0"],
    )
    hand_in("=stubs|[x](y)", {}, ["not attempted"] * 4, ["handed out"] * 4)
    four = lambda status, words: ([status] * 4, [words] * 4)  # noqa: E731
    for name, text in {
        "not json": "{",
        "a list": "[1]",
        "no cells": "{}",
        "odd cells": '{"cells": [{"cell_type": "code"}]}',
    }.items():
        write(folder / name / f"{NORM}.ipynb", text)
        expected[name] = four("broken notebook", "It is no notebook")
    write(folder / "deep" / f"{NORM}.ipynb", "[" * 100_000)
    expected["deep"] = four("broken notebook", "RecursionError")
    (folder / "bytes").mkdir()
    (folder / "bytes" / f"{NORM}.ipynb").write_bytes(b"\xff\xfe\x00")
    expected["bytes"] = four("broken notebook", "UnicodeDecodeError")
    (folder / "link").mkdir()
    (folder / "link" / f"{NORM}.ipynb").symlink_to(COURSE / f"{NORM}.ipynb")
    expected["link"] = four("broken notebook", "a link")
    (folder / "folder" / f"{NORM}.ipynb").mkdir(parents=True)
    expected["folder"] = four("broken notebook", "a folder")
    (folder / "linked").symlink_to(COURSE, target_is_directory=True)
    expected["linked"] = four("missing notebook", "under the name")
    (folder / "empty").mkdir()
    (folder / "empty" / "my essay.ipynb").write_text("{}")
    expected["empty"] = four("missing notebook", "under the name")
    write(folder / "twice" / "deep" / f"{NORM}.ipynb", handed_out())
    write(folder / f"twice__{NORM}.ipynb", handed_out())
    expected["twice"] = four("several files", f"twice__{NORM}.ipynb")
    write(folder / f"flat_name__{NORM}.ipynb", handed_out())
    expected["flat_name"] = four("not attempted", "handed out")
    (folder / os.fsdecode(b"caf\xe9")).mkdir()
    expected["caf\\udce9"] = four("missing notebook", "")
    write(folder / f"{NORM}.ipynb", handed_out())  # nobody's
    return expected


def picture_of(folder):
    """Everything that could change in a folder."""
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


def isolated():
    return not grade.why_not_isolated(ROOT / "tests")


class Graded:
    """One run over the whole class."""

    def __init__(self, place):
        self.folder, self.table, self.pages = place / "handed in", place / "grades.csv", place / "pages"
        self.folder.mkdir()
        self.expected = make_class(self.folder)
        self.before = picture_of(self.folder)
        flag = [] if isolated() else ["--no-isolation"]
        places = [str(self.folder), "--csv", str(self.table), "--feedback", str(self.pages)]
        grade.main([*places, "--only", NORM, "--seconds", str(SECONDS), *flag])
        with open(self.table, encoding="utf-8", newline="") as file:
            self.rows = list(csv.DictReader(file))

    def of(self, student):
        return [row for row in self.rows if row["student"].removeprefix("'") == student]


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    return Graded(tmp_path_factory.mktemp("class"))


# ------------------------------------------------------------------------------------------------- grading


def test_every_row_is_accounted_for(graded):
    assert len(graded.rows) == 4 * len(graded.expected)
    assert len({(row["student"], row["notebook"], row["exercise"]) for row in graded.rows}) == len(graded.rows)
    assert {row["student"].removeprefix("'") for row in graded.rows} == set(graded.expected)
    assert {row["status"] for row in graded.rows} == set(grade.STATUSES) - {"not graded"}


def test_there_are_at_least_twelve_kinds_of_broken_submission(graded):
    kinds = {(row["status"], row["seen"]) for row in graded.rows if row["status"] not in ("passed", "not attempted")}
    assert len(kinds) >= 12


def test_each_fault_costs_its_exercise_and_no_other(graded):
    got = {name: [row["status"] for row in graded.of(name)] for name in graded.expected}
    assert got == {name: statuses for name, (statuses, _) in graded.expected.items()}


def test_each_fault_is_named(graded):
    missing = []
    for name, (_, words) in graded.expected.items():
        for row, word in zip(graded.of(name), words, strict=True):
            if word not in f"{row['seen']} {row['hint']}":
                missing.append((name, row["exercise"], word, row["seen"], row["hint"]))
    assert missing == []


def test_submissions_are_left_as_they_were(graded):
    assert picture_of(graded.folder) == graded.before


def test_nothing_is_left_beside_the_table(graded):
    assert sorted(path.name for path in graded.table.parent.iterdir()) == ["grades.csv", "handed in", "pages"]


def test_an_endless_loop_costs_its_limit_and_no_more(graded):
    slow = [float(row["seconds"]) for row in graded.rows if row["status"] == "timed out"]
    assert len(slow) == 2
    assert all(SECONDS / 2 <= seconds < SECONDS + 100 for seconds in slow)  # with the start of a kernel


def running():
    """Programs that students started; the search must find this very process."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            commands.append(path.read_bytes())
    assert Path(f"/proc/{os.getpid()}/cmdline").read_bytes() in commands
    return [command for command in commands if b"time.sleep(314.159)" in command]


def still_running(seconds=60):
    """What is left of them after a while: a process that was killed takes a moment to go."""
    end = time.monotonic() + seconds
    while (left := running()) and time.monotonic() < end:
        time.sleep(0.1)
    return left


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks into /proc; runs on Linux")
def test_what_a_program_started_ends_with_its_exercise(graded):
    assert still_running() == []


def test_no_cell_is_taken_for_a_formula(graded):
    assert "'=stubs|[x](y)" in graded.table.read_text(encoding="utf-8")


def test_every_student_gets_a_page(graded):
    pages = {path.name: path.read_text(encoding="utf-8") for path in graded.pages.iterdir()}
    assert len(pages) == len(graded.expected)
    assert all(f"{NORM}".replace("_", "\\_") in page and "of 4 exercises passed." in page for page in pages.values())
    assert "2 of 4 exercises passed." in pages["right.md"]
    assert "inside the root" in pages["checks edited, loop, syntax, deleted.md"]
    assert "- my essay.ipynb" in pages["empty.md"]
    assert pages["=stubs|[x](y).md"].startswith("# =stubs\\|\\[x\\](y)\n")  # no table, link or markup of the student's
    isolation = "in isolation (bubblewrap)" if isolated() else "without isolation"
    assert all(f"Graded {isolation}" in page for page in pages.values())
    assert {row["isolation"] for row in graded.rows} == {"bubblewrap" if isolated() else "none"}


def test_the_graders_modules_are_not_touched_by_what_students_do(graded):
    assert checks.check_rms_norm.__module__ == "checks"
    assert sys.modules["checks"] is checks


# --------------------------------------------------------------------------- what is asked, and what is cut out


def test_the_expected_exercises_are_those_of_the_course():
    course = submissions.read_course(COURSE)
    assert {stem[:2] for stem in course} == {f"0{number}" for number in range(1, 8)}
    asked = [exercise for exercises, _ in course.values() for exercise in exercises]
    assert len({(one.notebook, one.function) for one in asked}) == len(asked) == 30
    assert all(callable(getattr(checks, one.check)) for one in asked)
    assert [one.function for one in course[NORM][0]] == list(NAMES)
    assert course[NORM][0][0].title == "1. RMSNorm from memory"
    assert len({one.title for one in asked}) == len(asked)


def test_every_exercise_that_is_handed_out_is_not_attempted_and_needs_no_kernel():
    for stem, (exercises, statements) in submissions.read_course(COURSE).items():
        sources = ["".join(cell["source"]) for cell in handed_out(stem)["cells"] if cell["cell_type"] == "code"]
        own, faults = submissions.read_statements(sources)
        assert faults == {}, stem
        for exercise in exercises:
            verdict = grade._code_or_verdict(exercise, sources, own, faults, statements)
            assert verdict.args[0] == "not attempted", exercise


def cut(*cells, function="f", course=()):
    own, _ = submissions.read_statements(list(cells))
    return submissions.code_for(function, own, submissions.read_statements(list(course))[0])


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        (["import os\nimport sys", "def f(x):\n    return os.sep"], "import os\ndef f(x):\n    return os.sep"),
        (["x = slow()", "def f(x):\n    return x"], "def f(x):\n    return x"),  # its own x, not the notebook's
        (["def f(): return g()\ndef g(): return 2"], "def f():\n    return g()\ndef g():\n    return 2"),
        (["a = {}", "a['b'] = 1", "a.pop(2)", "f = lambda: a"], "a = {}\na['b'] = 1\na.pop(2)\nf = lambda: a"),
        (["import m", "m.allclose = 1", "m.seed(0)", "f = lambda: m"], "import m\nf = lambda: m"),
        (["from math import *", "f = lambda: pi"], "from math import *\nf = lambda: pi"),
        (["n = 1", "n = n + k", "k = 3", "f = lambda: n"], "n = 1\nn = n + k\nk = 3\nf = lambda: n"),
        (["%matplotlib inline\nn = 1", "!ls", "f = lambda: n"], "n = 1\nf = lambda: n"),
        (["f = lambda: later", "later = 1"], "f = lambda: later"),  # not there yet when the exercise's cell is run
        (["with c() as b:\n    pass", "@b\ndef f(): ..."], "with c() as b:\n    pass\n@b\ndef f():\n    ..."),
        (["x = 1", "from __future__ import division\nf = x.y"], "from __future__ import division\nx = 1\nf = x.y"),
        (["f = lambda x: g(x)", "def g(x): ...\nf = g"], "f = lambda x: g(x)\ndef g(x):\n    ...\nf = g"),
        (["class C:\n    k = m\nm = 1", "f = lambda: C"], "class C:\n    k = m\nm = 1\nf = lambda: C"),
        (["a = 1", "f = lambda: [a for a in range(3)]"], "f = lambda: [a for a in range(3)]"),
        (["while True:\n    pass", "a = 1\nprint(a)", "f = lambda: a"], "a = 1\nf = lambda: a"),
    ],
)  # fmt: skip
def test_a_function_gets_the_statements_it_needs_and_no_others(cells, wanted):
    assert cut(*cells) == wanted


def test_names_that_the_learner_lacks_come_from_the_course():
    assert cut("def f():\n    return F", course=["import F", "import G"]) == "import F\ndef f():\n    return F"
    assert cut("F = 2", "def f():\n    return F", course=["import F"]) == "F = 2\ndef f():\n    return F"
    assert cut("x = 1") is None


# --------------------------------------------------------------------------------------- isolation, and refusals


def handed_in(place, answers, stem=NORM):
    write(place / "handed in" / "anna" / f"{stem}.ipynb", solved(answers, stem))
    return place / "handed in"


def run_main(folder, *more):
    grade.main([str(folder), "--csv", str(folder.parent / "g.csv"), *more])
    with open(folder.parent / "g.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def stop_if_run(*_):
    raise AssertionError("a student's program would have been run")


@pytest.mark.parametrize("bwrap", [None, "#!/bin/sh\necho 'no permissions to create a new namespace' >&2\nexit 1\n"])
def test_without_isolation_nothing_is_run_unless_told(tmp_path, monkeypatch, bwrap):
    folder = handed_in(tmp_path, NORM_RIGHT)
    (tmp_path / "bin").mkdir()
    if bwrap:
        (tmp_path / "bin" / "bwrap").write_text(bwrap)
        (tmp_path / "bin" / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(grade, "run_exercise", stop_if_run)
    why = "no permissions to create a new namespace" if bwrap else "is not installed"
    with pytest.raises(SystemExit, match=f"cannot be isolated: .*{why}.*Nothing was run.*--no-isolation"):
        run_main(folder)
    assert not (tmp_path / "g.csv").exists()


def test_no_isolation_is_said_before_and_in_the_table(tmp_path, monkeypatch, capsys):
    folder = handed_in(tmp_path, {"my_rms_norm": WRONG_NORM})
    said = []

    def run(*_):
        said.append(capsys.readouterr().out)
        return "passed", "", ""

    monkeypatch.setattr(grade, "run_exercise", run)
    rows = run_main(folder, "--no-isolation", "--only", "01")
    assert len(said) == 1
    assert said[0].startswith("NOT ISOLATED: programs run as you")
    assert {row["isolation"] for row in rows} == {"none"}
    assert "without isolation from the machine" in (tmp_path / "g_feedback" / "anna.md").read_text(encoding="utf-8")


FAKE_BWRAP = """#!/bin/sh
printf '%s\\n' "$@" > "$(dirname "$0")/said.$$"
while [ "$1" != -- ] && [ "$1" != "{python}" ]; do shift; done
[ "$1" = -- ] && shift
exec "$@"
"""


@pytest.mark.skipif(os.name != "posix", reason="bubblewrap is for Linux; unix sockets carry the kernel's messages")
def test_every_kernel_is_started_through_bubblewrap(tmp_path, monkeypatch):
    folder = handed_in(tmp_path, {"my_rms_norm": WRONG_NORM})
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bwrap").write_text(FAKE_BWRAP.format(python=sys.executable))
    (tmp_path / "bin" / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    rows = run_main(folder, "--only", "01")
    assert [row["status"] for row in rows] == ["not yet"] + ["not attempted"] * 3
    assert {row["isolation"] for row in rows} == {"bubblewrap"}
    calls = [path.read_text().split("\n") for path in (tmp_path / "bin").glob("said.*")]
    assert len(calls) == 2  # the trial, and the one kernel
    for call in calls:
        assert {"--unshare-all", "--die-with-parent", "--new-session", "--ro-bind"} <= set(call)
        assert call.count("--bind") == 1  # one folder can be written: the kernel's own
        assert call[call.index("--bind") - 1] == str(folder.resolve())  # hidden
        assert "--share-net" not in call


ESCAPE = """
import os, socket, subprocess, sys

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(314.159)"])

def reachable(what):
    try:
        what()
    except OSError:
        return False
    return True

def my_rms_norm(x, weight, eps, child=child):
    home, folder = {home!r}, {folder!r}
    found = {{
        "network": reachable(lambda: socket.create_connection(("127.0.0.1", {port}), timeout=2)),
        "disk": reachable(lambda: open({written!r}, "w")),
        "environment": "GRADE_SECRET" in os.environ,
        "home": reachable(lambda: open(os.path.join(home, {secret!r}))),
        "others": reachable(lambda: open(os.path.join(folder, "anna", "{norm}.ipynb"))),
        "grader": os.path.exists("/proc/{pid}"),
    }}
    open("mine", "w").write("x")
    raise ValueError(" ".join(sorted(name for name, is_there in found.items() if is_there)) or "nothing")
"""


@pytest.fixture
def escape(monkeypatch):
    """Submissions of somebody who tries what is forbidden, and says in the error what succeeded."""
    # not below the folder for temporary files, all of which is hidden anyway
    place = Path(tempfile.mkdtemp(dir="/var/tmp" if Path("/var/tmp").is_dir() else None))
    (place / "home").mkdir()
    (place / "home" / "secret").write_text("x")
    monkeypatch.setenv("HOME", str(place / "home"))
    monkeypatch.setenv("GRADE_SECRET", "x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        text = ESCAPE.format(
            home=str(place / "home"), folder=str(place / "handed in"), port=server.getsockname()[1], norm=NORM,
            pid=os.getpid(), secret="secret", written=str(place / "written"),
        )  # fmt: skip
        yield handed_in(place, {"my_rms_norm": text})
    shutil.rmtree(place)


def test_bubblewrap_keeps_the_machine_out_of_reach(escape):
    fault = grade.why_not_isolated(escape)
    if fault:
        pytest.skip(f"{fault}; runs where bubblewrap works")
    row = run_main(escape, "--only", "01")[0]
    assert (row["status"], row["isolation"]) == ("not yet", "bubblewrap")
    assert "ValueError: nothing" in row["seen"], row


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks into /proc; runs on Linux")
def test_the_attempt_succeeds_without_bubblewrap(escape):
    """So that the test above can fail: the same program finds what is there."""
    row = run_main(escape, "--only", "01", "--no-isolation")[0]
    assert row["status"] == "not yet"
    assert "ValueError: disk grader home network others" in row["seen"], row  # but not the environment
    assert still_running() == []  # what it started has ended nevertheless


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--seconds", "0"], "must be above 0"),
        (["--jobs", "0"], "must be above 0"),
        (["--csv", "{folder}/g.csv"], "where nothing is written"),
        (["--feedback", "{folder}"], "where nothing is written"),
        (["--csv", "{folder}/../no/g.csv"], "make it first"),
        (["--only", "09"], "no notebook 09 with exercises; found: 01_rmsnorm"),
        (["--course", "{folder}"], "with exercises; found: none"),
    ],
)
def test_a_wrong_command_says_so_before_anything_runs(tmp_path, monkeypatch, capsys, more, words):
    folder = handed_in(tmp_path, NORM_RIGHT)
    monkeypatch.setattr(grade, "run_exercise", stop_if_run)
    with pytest.raises(SystemExit) as stopped:
        grade.main([str(folder), "--no-isolation", *(word.format(folder=folder) for word in more)])
    assert words in " ".join(f"{stopped.value} {capsys.readouterr().err}".split())


def test_an_empty_folder_says_what_is_expected(tmp_path):
    with pytest.raises(ValueError, match=rf"neither folders of students nor files like anna__{NORM}\.ipynb"):
        submissions.find_submissions(tmp_path, [NORM])


def test_a_fault_of_the_grader_is_not_the_students(tmp_path, monkeypatch):
    folder = handed_in(tmp_path, {"my_rms_norm": WRONG_NORM})
    monkeypatch.setattr(grade, "fresh_kernel", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    row = run_main(folder, "--only", "01", "--no-isolation")[0]
    assert (row["status"], row["seen"]) == ("not graded", "OSError: [Errno 28] No space left on device")


@pytest.mark.parametrize(
    "said",
    ["None", "'passed'", "'[]'", "'[\"other\", \"passed\", \"\", \"\"]'", "'[\"mine\", \"gold\", \"\", \"\"]'"],
)  # fmt: skip
def test_only_the_checks_own_answer_counts(said):
    reply = {"status": "ok", "user_expressions": {"verdict": {"data": {"text/plain": said}}}}
    assert grade._verdict(reply, "mine")[0] == "not graded"
    reply["user_expressions"]["verdict"]["data"]["text/plain"] = '\'["mine", "passed", "fine", ""]\''
    assert grade._verdict(reply, "mine") == ("passed", "fine", "")


def test_a_stopped_run_leaves_a_whole_table(tmp_path):
    loop = "def my_rms_norm(x, weight, eps):\n    while True:\n        pass"
    folder = handed_in(tmp_path, NORM_RIGHT | {"mended_norm": loop.replace("my_rms", "mended")})
    (tmp_path / "g.csv").write_text("old\n")
    command = [sys.executable, "-m", "helpers.grade", str(folder), "--csv", str(tmp_path / "g.csv"), "--only", "01"]
    command += ["--no-isolation", "--seconds", "60"]
    run = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip
    while "1. RMSNorm from memory" not in (line := run.stdout.readline()):
        assert line, run.stderr.read()
    assert (tmp_path / "g.csv").read_text() == "old\n"
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=600)
    assert run.returncode == 1
    assert "stopped" in errors
    assert "Traceback" not in errors
    with open(tmp_path / "g.csv", encoding="utf-8", newline="") as file:
        first, running, *rest = [row["status"] for row in csv.DictReader(file)]
    assert (first, rest) == ("passed", ["not graded"] * 2)
    assert running in ("timed out", "not graded")  # it had begun, or not


# --------------------------------------------------------------------------------------- a folder to hand out


@pytest.fixture(scope="module")
def handed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hand") / "out"
    hand_out.main(["student", str(folder)])
    return folder


def test_no_solution_and_no_output_is_handed_out(handed):
    for path in sorted(COURSE.glob("[0-9][0-9]_*.ipynb")):
        ours, theirs = (nbformat.read(place / path.name, as_version=4) for place in (COURSE, handed / "notebooks"))
        nbformat.validate(theirs)
        kept = len(theirs.cells)
        assert (kept < len(ours.cells)) == (path.stem[:2] != "00")
        for cell, original in zip(theirs.cells, ours.cells, strict=False):
            assert cell.source == original.source.replace("; solutions are at the end", "")
            assert (cell.cell_type, cell.get("id"), cell.metadata) == (
                original.cell_type,
                original.get("id"),
                original.metadata,
            )
            assert not cell.get("outputs")
            assert cell.get("execution_count") is None
        assert not any(re.match(r"## +Solutions", cell.source) for cell in theirs.cells)
        solving = set(re.findall(r"^def (\w+)", "\n".join(cell.source for cell in ours.cells[kept:]), re.M))
        assert len(solving) >= 3 or path.stem[:2] == "00"
        text = (handed / "notebooks" / path.name).read_text(encoding="utf-8")
        assert [name for name in solving if name in text] == []
        assert "olutions" not in text


def test_what_is_handed_out_runs_and_its_checks_are_ours(handed):
    for name in (
        "helpers/checks.py",
        "helpers/exercises/norm.py",
        "pyproject.toml",
        "helpers/assets/tiny-llama/config.json",
    ):
        assert (handed / name).read_bytes() == (ROOT / name).read_bytes()
    assert not list(handed.rglob("__pycache__"))
    said = 0
    for stem in submissions.read_course(COURSE):
        names = {}
        for cell in nbformat.read(handed / "notebooks" / f"{stem}.ipynb", as_version=4).cells:
            if "exercise" in cell.metadata.get("tags", []):
                *above, last = cell.source.strip().splitlines()
                exec("\n".join(above), names)  # the cells that are handed out, on their own
                assert repr(eval(last, names)).endswith("then run this cell again.")
                said += 1
    assert said == 30


def test_a_full_folder_is_not_overwritten(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(SystemExit, match="is there already and not an empty folder"):
            hand_out.main(["student", str(place)])
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_solutions_that_are_not_found_are_not_handed_out(tmp_path):
    notebook = json.loads((COURSE / f"{NORM}.ipynb").read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"]).replace("## Solutions", "## Answers")
    write(tmp_path / "course" / "notebooks" / f"{NORM}.ipynb", notebook)
    with pytest.raises(ValueError, match='exercises but no heading "## Solutions"'):
        hand_out.student(tmp_path / "out", tmp_path / "course")
    assert [path.name for path in tmp_path.iterdir()] == ["course"]


def test_an_exercise_that_was_solved_in_its_cell_is_not_handed_out(tmp_path):
    notebook = json.loads((COURSE / f"{NORM}.ipynb").read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if "def mended_norm" in "".join(cell["source"]):
            cell["source"] = NORM_RIGHT["mended_norm"] + "\n\ncheck_rms_norm(mended_norm)"
    write(tmp_path / "course" / "notebooks" / f"{NORM}.ipynb", notebook)
    with pytest.raises(
        ValueError, match=r"the exercise check_rms_norm\(mended_norm\) is solved here.*helpers\.classroom reset"
    ):
        hand_out.student(tmp_path / "out", tmp_path / "course")
    assert [path.name for path in tmp_path.iterdir()] == ["course"]


def test_copies_of_a_notebook_are_not_the_course(tmp_path):
    names = ["01_rmsnorm", "01_rmsnorm-Copy1", "01_rmsnorm_kept_2026-01-02_03-04-05", "essay", "06_train_and_generate"]
    for name in names:
        (tmp_path / f"{name}.ipynb").write_text("{}")
    assert [path.stem for path in hand_out.notebooks_of(tmp_path)] == [names[0], names[-1]]


# ---------------------------------------------------------------------------------------------- a fresh copy


def git(place, *words):
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=place, check=True, capture_output=True)


@pytest.fixture
def learner(tmp_path):
    """A checkout whose notebook the learner has changed."""
    if not shutil.which("git"):
        pytest.skip("git is not installed; runs where it is")
    path = tmp_path / "notebooks" / "02_rope.ipynb"
    write(path, "fresh")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "x")
    path.write_text("my work")
    return path


def texts_beside(path):
    return sorted(other.read_text() for other in path.parent.iterdir() if other.suffix == ".ipynb" and other != path)


def test_reset_gives_a_fresh_copy_and_keeps_yours(learner, capsys):
    hand_out.main(["reset", str(learner)])
    assert learner.read_text() == "fresh"
    (kept,) = (path for path in learner.parent.iterdir() if path != learner)
    assert re.fullmatch(r"02_rope_kept_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d\.ipynb", kept.name)
    assert kept.read_text() == "my work"
    assert kept.name in capsys.readouterr().out
    assert hand_out.reset(learner) is None  # it is fresh: nothing to keep
    assert len(list(learner.parent.iterdir())) == 2


def test_resets_within_a_second_lose_nothing(learner, monkeypatch):
    class Stopped(hand_out.datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, 5)

    monkeypatch.setattr(hand_out.datetime, "datetime", Stopped)
    for work in ("first", "second", "third"):
        learner.write_text(work)
        hand_out.reset(learner)
    assert texts_beside(learner) == ["first", "second", "third"]


def test_a_missing_notebook_comes_back(learner):
    learner.unlink()
    assert hand_out.reset(learner) is None
    assert learner.read_text() == "fresh"


def test_reset_without_a_fresh_copy_changes_nothing(learner, tmp_path, monkeypatch):
    mine = learner.with_name("mine.ipynb")
    mine.write_text("mine")
    with pytest.raises(SystemExit, match=r"git has no fresh copy of .*mine\.ipynb: .*Copy it from where"):
        hand_out.main(["reset", str(mine)])
    with pytest.raises(ValueError, match=r"notebooks is no notebook: a name that ends in \.ipynb"):
        hand_out.reset(learner.parent)
    with pytest.raises(ValueError, match="there is no folder"):
        hand_out.reset(tmp_path / "no" / "x.ipynb")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="git is not installed"):
        hand_out.reset(learner)
    assert sorted(path.read_text() for path in learner.parent.iterdir()) == ["mine", "my work"]


# Ends the process at the n-th thing that is done to files, for n = 1, 1 + step, ..., in children of one process.
KILLER = """
import json, os, pathlib, shutil, sys
from tools.classroom import hand_out
path, what, step = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
work = {
    "reset": lambda: hand_out.reset(path),
    "write_beside": lambda: classroom.write_beside(path, "fresh"),
    "student": lambda: hand_out.student(path.parent / "out"),
}[what]
reports, stop_at, finished = [], 1, False
while not finished:
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    path.write_text("my work")
    child = os.fork()
    if not child:
        count = 0
        def hook(event, arguments):
            global count
            if event in ("open", "os.rename", "os.remove", "os.chmod", "os.mkdir", "os.rmdir", "os.utime"):
                count += 1
                if count == stop_at:
                    os._exit(9)
        sys.addaudithook(hook)
        work()
        os._exit(0)
    finished = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    kept = sorted(other.read_text() for other in path.parent.glob("02_rope_kept*"))
    out = sorted(str(other.relative_to(path.parent)) for other in path.parent.glob("out/**/*"))
    reports.append([path.read_text() if path.exists() else None, kept, out])
    stop_at += step
print(json.dumps(reports))
"""


def killed(path, what, step):
    """[text under the notebook's name, texts that were kept, files handed out] after each stop; the last one ended."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLER, str(path), what, str(step)],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the test needs os.fork; runs on Linux and macOS")


@needs_fork
def test_a_reset_that_is_killed_keeps_the_learners_text(learner):
    reports = killed(learner, "reset", 1)
    assert len(reports) > 5
    assert all("my work" in [now, *kept] for now, kept, _ in reports)
    assert {now for now, _, _ in reports} <= {"my work", "fresh", None}
    assert reports[-1] == ["fresh", ["my work"], []]


@needs_fork
def test_a_table_that_is_killed_is_the_old_or_the_new_one(learner):
    reports = killed(learner, "write_beside", 1)
    assert len(reports) > 2
    assert {now for now, _, _ in reports} == {"my work", "fresh"}
    assert reports[-1][0] == "fresh"


@needs_fork
def test_a_folder_to_hand_out_that_is_killed_is_whole_or_not_there(learner):
    reports = killed(learner, "student", 11)
    assert len(reports) > 10
    whole = reports[-1][2]
    assert "out/notebooks/07_scaling_out.ipynb" in whole
    assert all(out in ([], whole) for _, _, out in reports)
