"""A student's program sees nothing of the machine, and cannot fill it; without a sandbox the same attempts succeed."""

import csv
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from teaching.classroom import grade, sandbox
from teaching.classroom.sandbox import Died, TimeUp, run_limited
from tests.support.course import ROOT
from tests.support.submissions import NORM, NORM_RIGHT, solved, write

linux = pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc; runs on Linux")


@pytest.fixture(scope="module")
def box():
    found, fault = sandbox.find_sandbox()
    if fault:
        pytest.skip(f"{fault}; runs where bubblewrap works")
    return found


LOOK = """
import contextlib, glob, os, re, socket


def my_rms_norm(x, weight, eps):
    # an answer that says everything that it finds, and leaves a mark wherever it can write
    found = [repr(os.environ).encode()]
    for pattern in PATTERNS:
        for name in glob.glob(pattern, include_hidden=True):
            with contextlib.suppress(OSError):
                found.append(open(name, "rb").read())
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", PORT), timeout=2):
        found.append(b"secret-" + b"10")
    for place in FOLDERS:
        with contextlib.suppress(OSError):
            open(os.path.join(place, "stolen"), "w").write("mark" + "-of-eve")
    raise ValueError(" ".join(sorted({word.decode() for word in re.findall(rb"secret-[0-9]{2}", b" ".join(found))})))
"""
SECRETS = {f"secret-{number:02}" for number in range(11)}


@pytest.fixture
def teacher():
    """A teacher's machine with eleven secrets, and the submission of Eve, who knows where they lie."""
    outside = "/var/tmp" if Path("/var/tmp").is_dir() else None  # every program has a /tmp of its own
    with (
        tempfile.TemporaryDirectory(dir=outside) as place,
        tempfile.TemporaryDirectory(prefix="teachers-", dir="/tmp") as in_tmp,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        place = Path(place).resolve()
        course, folder, results = place / "course", place / "class" / "handed-in", place / "class" / "handed-in_graded"
        left_out = shutil.ignore_patterns("__pycache__", "node_modules", ".hub", "tests")
        for name in ("helpers", "explorers", "beyond", "checks", "tools", "teaching", "notebooks", "docs"):
            shutil.copytree(ROOT / name, course / name, ignore=left_out)
        planted = {
            place / "class" / "marks.txt": "secret-00",
            course / "marks.txt": "secret-01",
            course / ".hub" / "cookie_secret": "secret-02",
            results / "marks.txt": "secret-03",  # of an earlier run
            place / "home" / ".netrc": "secret-04",
            Path(in_tmp, "marks.txt"): "secret-05",
            folder / "anna" / f"{NORM}.ipynb": solved({}, extra=["# secret-06"]),
            place / "linked" / "marks.txt": "secret-07",
        }
        for path, text in planted.items():
            write(path, text)
        (folder / "eve").mkdir()
        (folder / "eve" / "link").symlink_to(place / "linked", target_is_directory=True)
        patterns = [str(path) for path in planted if path.parent.name != "linked"] + [f"{folder}/eve/link/*"]
        patterns += ["/proc/*/environ", "/proc/*/cmdline"]
        folders = (place, course, course / "helpers", folder, folder / "eve", results, place / "home")
        look = LOOK.replace("PATTERNS", repr(patterns)).replace("PORT", str(server.getsockname()[1]))
        write(
            folder / "eve" / f"{NORM}.ipynb",
            solved({"my_rms_norm": look.replace("FOLDERS", repr([*map(str, folders)]))}),
        )
        write(folder / "fred" / f"{NORM}.ipynb", solved({"my_rms_norm": NORM_RIGHT["my_rms_norm"]}))
        yield SimpleNamespace(place=place, course=course, folder=folder, planted=planted, folders=folders)


def graded(teacher, results, *more):
    """Grade in the teacher's copy of the course, as the page says; {student: the row of the table}."""
    command = [sys.executable, "-X", "note=secret-08", "-m", "teaching.classroom.grade", str(teacher.folder)]
    env = os.environ | {"PYTHONPATH": str(teacher.course), "HOME": str(teacher.place / "home"), "NOTE": "secret-09"}
    subprocess.run([*command, "--only", "01.1", *more], cwd=teacher.course, env=env, check=True, timeout=500)
    with open(teacher.folder.with_name(results) / "exercises.csv", encoding="utf-8-sig", newline="") as file:
        return {row["student"]: row for row in csv.DictReader(file)}


@pytest.mark.slow
def test_none_of_eleven_secrets_comes_out_and_nothing_is_written_but_without_a_sandbox_all_is(teacher, box):
    rows = graded(teacher, "handed-in_graded_2")
    for path in {path for path in teacher.place.rglob("*") if path.is_file()} - {*teacher.planted}:
        text = path.read_bytes().decode("utf-8", "replace")
        assert not [word for word in (*SECRETS, "mark-of-eve") if word in text], path
    assert (rows["eve"]["status"], rows["fred"]["status"]) == ("not yet", "passed")
    seen = graded(teacher, "handed-in_graded_3", "--no-isolation")["eve"]["seen"]
    assert [word for word in sorted(SECRETS) if word not in seen] == []
    assert [folder for folder in teacher.folders if not (folder / "stolen").exists()] == []


SEE = """
import os, sys

for top, folders, files in os.walk("/"):
    if top.startswith(tuple(sys.argv[1:])):
        folders.clear()
    elif files:
        print("sees", top, *sorted(files))
for top in ("/", "/dev", "/proc", "/proc/sys/kernel", "/proc/sys/vm", "/usr", *sys.argv[1:]):
    for name in [top, *(os.path.join(top, name) for name in os.listdir(top))]:
        if os.path.isfile(name) and os.access(name, os.W_OK) and not name.startswith("/dev/"):
            print("writes", name)
print("processes", *[name for name in os.listdir("/proc") if name.isdecimal() and int(name) > 9])
print("capabilities", *{line.split()[1] for line in open("/proc/self/status") if line.startswith("Cap")})
"""


def test_only_the_interpreter_and_the_courses_two_packages_are_inside(box):
    named = ["/usr", "/proc", "/sys/devices/system/cpu", "/etc/alternatives", sys.prefix, os.path.realpath(sys.prefix)]
    named += [sys.base_prefix, *(str(ROOT / room) for room in ("helpers", "explorers", "beyond", "checks"))]
    said = run_limited(["-c", SEE, *named], b"", 60, box).decode().splitlines()
    devices = "sees /dev full null random urandom zero"
    assert said == [devices, "sees /etc ld.so.cache", "processes", "capabilities 0000000000000000"]


@pytest.mark.parametrize(("said", "program"), [  # bounded, so that a fault of the sandbox costs a test, not the machine
    ("The program failed", "os.mkdir('/else')"),
    ("The program failed", "subprocess.run(['unshare', '--user', '--map-root-user', 'true'], check=True)"),
    ("The program failed", "os.setuid(0)"),
    ("The program failed", "for name in range(9): open(str(name), 'wb').write(bytes(2**25))"),  # its disk has a size
    ("more than 2,000 files", "for name in range(4000): open(str(name), 'w').close()"),
    ("more than 60 processes", "others = [subprocess.Popen(['sleep', '30']) for _ in range(100)]"),
    ("more than 0.5 GiB", "others = [os.fork() for _ in range(2)]; filling = b'x' * 2**28"),
    ("wrote more than 10 MB", "print('x' * 2 * 10**7)"),
])  # fmt: skip
def test_a_program_cannot_change_its_sandbox_nor_take_too_much_of_anything(box, monkeypatch, said, program):
    monkeypatch.setattr(sandbox, "MEMORY", 2**29)
    monkeypatch.setattr(sandbox, "FILES", 2000)
    monkeypatch.setattr(sandbox, "PROCESSES", 60)
    with pytest.raises(Died, match=said):
        run_limited(["-c", f"import os, subprocess, time\n{program}\ntime.sleep(30)"], b"", 20, box)


def test_the_machines_own_disk_is_not_taken_for_the_programs_while_the_sandbox_is_made(box, monkeypatch):
    monkeypatch.setattr(sandbox, "POLL_SECONDS", 0.001)
    for _ in range(20):
        assert run_limited(["-c", "print(1)"], b"", 60, box) == b"1\n"


KEYRING = """
import ctypes, sys
call = ctypes.CDLL(None).syscall
call.restype = ctypes.c_long
add, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[__import__("os").uname().machine]
ring = ctypes.c_long(-3)  # of the session
"""
PLANT = """
if call(keyctl, 1, None) < 0 or call(add, b"user", b"course-test", b"secret-11", ctypes.c_size_t(9), ring) < 0:
    sys.exit("no keys here")
"""
DIG = """
key, found = call(keyctl, 10, ring, b"user", b"course-test", 0), ctypes.create_string_buffer(9)
call(keyctl, 11, ctypes.c_long(key), found, ctypes.c_size_t(9))
print(found.raw)
"""


def test_the_keys_of_the_graders_session_are_not_inside(box):
    """In a program of its own, which has a session of its own."""
    read = "from teaching.classroom.sandbox import find_sandbox, run_limited\n"
    read += f"print(run_limited(['-c', {KEYRING + DIG!r}], b'', 60, find_sandbox()[0]))"
    done = subprocess.run(
        [sys.executable, "-c", KEYRING + PLANT + DIG + read], cwd=ROOT, capture_output=True, text=True
    )
    if "no keys here" in done.stderr:
        pytest.skip("the kernel lends no keyring here")
    own, inside = done.stdout.split("\n")[:2]
    assert "secret-11" in own, done.stderr
    assert "secret-11" not in inside
    assert inside


def test_a_machine_without_memory_ends_the_program_and_not_the_grader(box, monkeypatch):
    monkeypatch.setattr(sandbox, "RESERVED_MEMORY", 2**60)
    with pytest.raises(Died, match="no memory left"):
        run_limited(["-c", "import time; time.sleep(30)"], b"", 20, box)
    adjusted = "print(open('/proc/self/oom_score_adj').read())"
    monkeypatch.undo()
    assert int(run_limited(["-c", adjusted], b"", 20, box)) == 1000


def test_processor_time_counts_those_that_have_ended(box):
    work = "import os, time\nif not os.fork():\n    while time.process_time() < 1: pass\n    os._exit(0)\nos.wait()"
    with sandbox._started(["-c", f"{work}\nprint('done', flush=True)\ntime.sleep(30)"], box) as program:
        next(program.parts(20))
        assert sandbox._processor_seconds(sandbox._family(program.process.pid)) >= 0.9


@linux
def test_processor_time_alone_ends_a_program(monkeypatch):
    taken = iter((0.0, 59.0, 61.0))
    monkeypatch.setattr(sandbox, "_processor_seconds", lambda family: next(taken))
    start = time.monotonic()
    with pytest.raises(TimeUp):
        run_limited(["-c", "import time; time.sleep(50)"], b"", 60, None)
    assert time.monotonic() - start < 45


@pytest.mark.parametrize("inside", [True, False])
def test_a_limited_program_is_fed_and_read_and_ends_with_all_that_it_started(request, inside):
    chosen = request.getfixturevalue("box") if inside else None
    turn = "import sys; sys.stdout.write(sys.stdin.read()[::-1])"
    assert run_limited(["-c", turn], b"a" * 10**6 + b"b", 60, chosen) == b"b" + b"a" * 10**6
    with pytest.raises(Died, match="The program failed"):
        run_limited(["-c", "import sys; sys.exit(1)"], b"", 60, chosen)
    start, forks = time.monotonic(), "import os, time; os.fork(); time.sleep(60)"
    with pytest.raises(TimeUp), sandbox._started(["-c", forks], chosen) as program:
        list(program.parts(2))
    assert not program.reader.is_alive(), "what it started outlives it, and holds its output"
    assert time.monotonic() - start < 30


@linux
def test_a_number_that_another_process_has_by_now_is_not_ended():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as other:
        ended = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        ended.wait()
        ended.pid = other.pid  # a system gives numbers out again
        sandbox._Program(ended, ("bwrap",)).end()
        other.communicate(b"\n")
        assert other.returncode == 0


@pytest.mark.parametrize("why", ["is not installed", "setting up uid map: Permission denied"])
def test_without_a_sandbox_nothing_is_run_and_the_remedy_is_said(tmp_path, monkeypatch, why):
    write(tmp_path / "handed-in" / "anna" / f"{NORM}.ipynb", solved(NORM_RIGHT))
    if why != "is not installed":
        (tmp_path / "bwrap").write_text(f"#!/bin/sh\necho 'bwrap: {why}' >&2\nexit 1\n")
        (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(grade, "run_exercise", None)  # it would fail
    with pytest.raises(SystemExit) as stopped:
        grade.main([str(tmp_path / "handed-in")])
    said = str(stopped.value)
    wanted = [why, "Nothing was run", "install -y bubblewrap", "sysctl -w", "python -m teaching.classroom.grade"]
    assert said.index("apt-get install -y bubblewrap") < said.index("Codespace")  # first what helps on this machine
    assert [words for words in [*wanted, "--no-isolation"] if words not in said] == []
    assert not (tmp_path / "handed-in_graded").exists()


def test_every_link_on_the_way_to_the_interpreter_is_inside(tmp_path, monkeypatch):
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(link))
    assert str(link) in sandbox._interpreter()


def test_a_python_whose_folder_holds_the_course_or_your_home_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "base_prefix", str(ROOT.parent))
    with pytest.raises(ValueError, match=f"the folder of Python, {ROOT.parent}, holds {ROOT} too"):
        sandbox._bwrap("bwrap")


def test_all_that_judges_is_loaded_before_a_students_code_is_run():
    """Else it would be found with the student's own import machinery."""
    before, _, _ = (ROOT / "teaching/classroom/sandbox_kernel.py").read_text(encoding="utf-8").partition("\ndef limit_")
    code = f"{before}\nprint(*(file.stem for file in __import__('pathlib').Path('checks').glob('[a-z]*.py')"
    code += " if 'checks.' + file.stem not in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
