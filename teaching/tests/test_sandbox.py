"""A student's program sees nothing of the machine, and cannot fill it; without a sandbox the same attempts succeed."""

import csv
import os
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
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
import glob, json, os, re, socket, sys


def look():
    # everything that can be found, and a mark wherever something can be written
    found = []
    for pattern in PATTERNS:
        for name in glob.glob(pattern, include_hidden=True):
            try:
                found.append(open(name, "rb").read())
            except OSError:
                pass
    try:
        with socket.create_connection(("127.0.0.1", PORT), timeout=2) as server:
            found.append(server.recv(100))
    except OSError:
        pass
    for place in FOLDERS:
        try:
            open(os.path.join(place, "stolen"), "w").write("mark" + "-of-eve")
        except OSError:
            pass
    text = b" ".join([*found, repr(os.environ).encode()])
    return " ".join(sorted({word.decode() for word in re.findall(rb"secret-[0-9]{2}", text)}))


"""
WAYS = {  # three ways out, one for each exercise
    "my_rms_norm": "def my_rms_norm(x, weight, eps, look=look):\n    raise ValueError(look())",
    "my_norm_probe": "def my_norm_probe(found=sys.exit(look())):\n    return found",
    "my_rms_norm_backward": "def my_rms_norm_backward(*given):\n    return type(look(), (), {})()",
}


class TellsSecret10(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(b"secret-10")


@pytest.fixture
def teacher():
    """A teacher's machine with eleven secrets, and the submission of Eve, who knows where they lie."""
    # not below /tmp, because every program has a /tmp of its own
    place = Path(tempfile.mkdtemp(dir="/var/tmp" if Path("/var/tmp").is_dir() else None)).resolve()
    course, folder, results = place / "course", place / "class" / "handed-in", place / "class" / "handed-in_graded"
    left_out = shutil.ignore_patterns("__pycache__", "node_modules", ".hub", "tests")
    for name in ("helpers", "checks", "tools", "teaching", "notebooks", "docs"):
        shutil.copytree(ROOT / name, course / name, ignore=left_out)
    write(results / ".graded.json", '{"verdicts": {}, "written": {}}')
    in_tmp = Path(tempfile.mkdtemp(prefix="teachers-", dir="/tmp"))
    planted = {  # where it lies, and the pattern by which Eve finds it
        place / "class" / "marks.txt": "secret-00",
        course / "marks.txt": "secret-01",
        course / ".hub" / "cookie_secret": "secret-02",
        results / "marks.txt": "secret-03",
        place / "home" / ".netrc": "secret-04",
        in_tmp / "marks.txt": "secret-05",
        folder / "anna" / f"{NORM}.ipynb": solved({}, extra=["# secret-06"]),
        place / "linked" / "marks.txt": "secret-07",
    }
    for path, text in planted.items():
        write(path, text)
    (folder / "eve").mkdir()
    (folder / "eve" / "link").symlink_to(place / "linked", target_is_directory=True)
    patterns = [str(path) for path in planted if path.parent.name != "linked"] + [f"{folder}/eve/link/*"]
    patterns += ["/proc/*/environ", "/proc/*/cmdline"]
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), TellsSecret10)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folders = (place, course, course / "helpers", folder, folder / "eve", results, place / "home")
    look = LOOK.replace("PATTERNS", repr(patterns)).replace("PORT", str(server.server_address[1]))
    look = look.replace("FOLDERS", repr([*map(str, folders)]))
    answers = {name: look + way for name, way in WAYS.items()}
    write(folder / "eve" / f"{NORM}.ipynb", solved(answers))
    write(folder / "fred" / f"{NORM}.ipynb", solved({"my_rms_norm": NORM_RIGHT["my_rms_norm"]}))
    everything = {f"secret-{number:02}" for number in range(11)}
    yield SimpleNamespace(place=place, course=course, folder=folder, results=results, planted=planted, all=everything)
    server.shutdown()
    server.server_close()
    shutil.rmtree(in_tmp)
    shutil.rmtree(place)


def graded(teacher, *more):
    """Grade in the teacher's copy of the course, as the page says; the rows of the table."""
    command = [sys.executable, "-X", "note=secret-08", "-m", "teaching.classroom.grade", str(teacher.folder)]
    env = os.environ | {"PYTHONPATH": str(teacher.course), "HOME": str(teacher.place / "home"), "NOTE": "secret-09"}
    subprocess.run([*command, "--only", "01", *more], cwd=teacher.course, env=env, check=True, timeout=500)
    with open(teacher.results / "exercises.csv", encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def holding(teacher, words):
    """Files below the teacher's folder, other than those planted and Eve's own, with the words that they hold."""
    own = {*teacher.planted, teacher.folder / "eve" / f"{NORM}.ipynb"}
    found = {}
    for path in teacher.place.rglob("*"):
        if path.is_file() and path not in own and not any(part.is_symlink() for part in (path, *path.parents)):
            text = path.read_bytes().decode("utf-8", "replace")
            if held := {word for word in words if word in text}:
                found[path.relative_to(teacher.place).as_posix()] = held
    return found


@pytest.mark.slow
def test_none_of_eleven_secrets_comes_out_and_nothing_is_written(teacher, box):
    rows = graded(teacher)
    assert holding(teacher, {*teacher.all, "mark-of-eve"}) == {}
    eve = [row["status"] for row in rows if row["student"] == "eve"]
    assert eve == ["not yet", "does not run", "not yet"]  # each way out was tried
    assert next(row["status"] for row in rows if row["student"] == "fred") == "passed"
    assert {row["isolation"] for row in rows} == {"bubblewrap"}


@linux
@pytest.mark.slow
def test_without_a_sandbox_all_of_them_come_out_by_every_way(teacher):
    rows = [row for row in graded(teacher, "--no-isolation") if row["student"] == "eve"]
    assert [sorted(word for word in teacher.all if word not in str(row)) for row in rows] == [[], [], []]
    assert len([name for name in holding(teacher, {"mark-of-eve"}) if name.endswith("/stolen")]) == 6
    assert (teacher.place / "stolen").exists()


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
    named += [sys.base_prefix, str(ROOT / "helpers"), str(ROOT / "checks")]
    said = run_limited(["-c", SEE, *named], b"", 60, box).decode().splitlines()
    devices = "sees /dev full null random urandom zero"
    assert said == [devices, "sees /etc ld.so.cache", "processes", "capabilities 0000000000000000"]


@pytest.mark.parametrize("attempt", [
    "os.mkdir('/else')", "subprocess.run(['unshare', '--user', '--map-root-user', 'true'], check=True)",
    "os.setuid(0)", "for name in range(9): open(str(name), 'wb').write(bytes(2**25))",  # its disk has a size
])  # fmt: skip
def test_a_program_cannot_change_its_sandbox_or_fill_its_disk(box, attempt):
    with pytest.raises(Died, match="failed"):
        run_limited(["-c", f"import os, subprocess\n{attempt}"], b"", 60, box)


TOO_MUCH = {  # bounded, so that a fault of the sandbox costs a test and not the machine
    "more than 2,000 files": "for name in range(4000): open(str(name), 'w').close()",
    "more than 60 processes": "others = [subprocess.Popen(['sleep', '30']) for _ in range(100)]",
    "more than 0.5 GiB": "others = [os.fork() for _ in range(2)]; filling = b'x' * 2**28",
    "wrote more than 10 MB": "print('x' * 2 * 10**7)",
}


@pytest.mark.parametrize(("said", "program"), TOO_MUCH.items())
def test_whatever_a_program_takes_too_much_of_it_is_ended_with_all_that_it_started(box, monkeypatch, said, program):
    monkeypatch.setattr(sandbox, "MEMORY", 2**29)
    monkeypatch.setattr(sandbox, "FILES", 2000)
    monkeypatch.setattr(sandbox, "PROCESSES", 60)
    program = f"import os, subprocess, time\ntry:\n    {program}\nfinally:\n    time.sleep(30)"
    with pytest.raises(Died, match=said):
        run_limited(["-c", program], b"", 20, box)


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
