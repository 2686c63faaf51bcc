"""Run a student's program inside a sandbox (Linux, bubblewrap), and within limits of memory, disk, processes and time.

Inside the sandbox there is nothing but what is named here: the interpreter and its packages, the system's libraries
(/usr, without /etc, /home, /run, /var), and the course's `helpers`, `explorers`, `beyond` and `checks`, all read-only.
/tmp is the only place to write to; it is small, it lies in memory, and it ends with the program. There is no network,
no process of yours, no variable of your environment, and no way to become another user.

Limits count for all processes of a program together: the grader looks at them several times a second, and ends them
all at once. Without one (macOS, Windows, --no-isolation) a program runs as you, with your files and your network; on
Linux the limits of memory, processes and processor time still count for what it has started and not let go.
"""

import contextlib
import functools
import json
import os
import queue
import secrets
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tools.course import ROOT, one_line

REMEDY = """
On Linux, install it (or the program of the same name in your distribution), and grade again:
    sudo apt-get update && sudo apt-get install -y bubblewrap
Ubuntu 24.04 or later, and "Permission denied"? This lets every program make a sandbox until the machine's next start:
    sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0
Elsewhere, grade on a Linux machine that holds nothing else, such as a Codespace: the line above, then in the course
    python -m pip install .
    python -m teaching.classroom.grade FOLDER
With --no-isolation programs run as you, with your files and your network: only where there is nothing to lose."""
START = 120  # seconds for a program to start and import torch, which is not the learner's time
MEMORY = 2**32  # bytes, of all processes together, and /tmp not counted
DISK = 2**28  # bytes in /tmp, which is memory as well
FILES = 20_000  # files and folders in /tmp
PROCESSES = 256  # processes and threads
RESERVED_MEMORY = 2**28  # bytes of memory that the machine keeps, whoever takes them
OUTPUT = 10**7  # bytes that a program may write to the grader
POLL_SECONDS = 0.1  # seconds between two looks at what a program uses
# Runs before bwrap, and again inside, where a limit of processes counts those inside and not yours too.
# Where memory ends all the same, the system ends programs with the number 1000 first. Your login may keep tickets and
# passwords in the kernel's keyring of the session, which no sandbox hides: the program gets a new one.
LIMIT = """
import contextlib, ctypes, os, resource, sys
most = {"NPROC": int(sys.argv[1])} if sys.argv[1] else {"FSIZE": 2**26, "NOFILE": 512, "CORE": 0}
for name, value in most.items():
    name = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(name)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(name, (value, value))
with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
    file.write("1000")
if sys.platform == "linux" and (keyctl := {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)):
    ctypes.CDLL(None).syscall(keyctl, 1, None)
os.execv(sys.argv[2], sys.argv[2:])
"""


class TimeUp(Exception):
    """The program has not answered in time."""


class Died(Exception):
    """The program has ended, or was ended; the text says what it took too much of, if it did."""


Sandbox = tuple[str, ...]  # the command that makes a sandbox of the program whose command follows it


def _interpreter() -> list[str]:
    """Folders of this Python and its packages, and each link on the way from its name to its file.

    Raises:
        ValueError: if such a folder holds the course or your home too.
    """
    places = [sys.base_prefix, sys.prefix]
    if site.ENABLE_USER_SITE and os.path.isdir(site.getusersitepackages()):
        places.append(site.getusersitepackages())
    for place in places:
        for kept in (ROOT, Path.home()):
            if kept.resolve().is_relative_to(os.path.realpath(place)):
                raise ValueError(f"the folder of Python, {place}, holds {kept} too: make an environment elsewhere")
    shown, link = ["/usr", *map(os.path.abspath, places), *map(os.path.realpath, places)], sys.executable
    while os.path.islink(link):
        if not any(Path(link).is_relative_to(place) for place in shown):
            places.append(link)
        link = os.path.join(os.path.dirname(link), os.readlink(link))
    return places


def _bwrap(bwrap: str) -> Sandbox:
    """The sandbox that bubblewrap builds. Nothing is inside but what stands here; later entries lie on earlier ones."""
    command = [bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"]
    command += ["--cap-drop", "ALL", "--new-session", "--die-with-parent", "--proc", "/proc"]
    command += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{name}"):
            command += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            command += ["--ro-bind", f"/{name}", f"/{name}"]
    for name in ("/etc/ld.so.cache", "/etc/alternatives", "/sys/devices/system/cpu"):  # torch asks what the cpu can do
        command += ["--ro-bind-try", name, name]
    for name in ("null", "zero", "full", "random", "urandom"):
        command += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    command += ["--size", str(DISK), "--tmpfs", "/tmp", "--symlink", "/tmp", "/dev/shm"]
    for needed in (*_interpreter(), *(str(ROOT / room) for room in ("helpers", "explorers", "beyond", "checks"))):
        real = os.path.realpath(needed)
        if not real.startswith("/usr/"):
            for name in dict.fromkeys((real, os.path.abspath(needed))):  # its real name, and that which is asked for
                command += ["--ro-bind", real, name]
    return (*command, "--remount-ro", "/", "--remount-ro", "/proc", "--chdir", "/tmp", "--")


def find_sandbox() -> tuple[Sandbox | None, str]:
    """(the sandbox, tried on this machine, or None; why students' programs cannot be isolated, in words)"""
    if not (bwrap := shutil.which("bwrap")):
        return None, "bubblewrap (the command bwrap) is not installed"
    try:
        sandbox = _bwrap(bwrap)
        command = [*sandbox, sys.executable, "-c", "import IPython, torch, helpers, checks"]
        env = _environment("/tmp", {})
        done = subprocess.run(command, capture_output=True, text=True, timeout=START, env=env, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return None, f"bwrap does not work here: {one_line(error)}"
    if done.returncode == 0:
        return sandbox, ""
    return None, f"bwrap does not work here: {one_line(done.stderr[-300:])}"


def _family(program: int) -> list[psutil.Process]:
    """A process and all below it."""
    try:
        first = psutil.Process(program)
        return [first, *first.children(recursive=True)]
    except psutil.Error:  # it has ended
        return []


def _total(family: list[psutil.Process], of_one) -> float:
    """A sum over processes, any of which may end at this moment."""
    total = 0.0
    for one in family:
        with contextlib.suppress(psutil.Error):
            total += of_one(one)
    return total


def _too_much(family: list[psutil.Process], sandbox: Sandbox | None) -> str:
    """What a program takes too much of, in words; empty if all is well."""
    if _total(family, psutil.Process.num_threads) > PROCESSES:
        return f"It started more than {PROCESSES} processes or threads."
    if _total(family, lambda one: one.memory_info().rss) > MEMORY:
        return f"It needed more than {MEMORY / 2**30:g} GiB of memory."
    if sandbox and len(family) > 1:
        with contextlib.suppress(OSError):  # it may end at this moment
            disk = os.statvfs(os.path.join("/proc", str(family[1].pid), "root", "tmp"))
            ours = disk.f_blocks * disk.f_frsize == DISK  # until the sandbox stands it is the machine's
            if ours and disk.f_files - disk.f_ffree > FILES:
                return f"It made more than {FILES:,} files."
    return ""


def _processor_seconds(family: list[psutil.Process]) -> float:
    """Time that processes took, and those that they have waited for."""
    return _total(family, lambda one: sum(one.cpu_times()[:4]))


class _Program:
    """A program that runs, what it wrote, and the sandbox around it."""

    def __init__(self, process: subprocess.Popen, sandbox: Sandbox | None):
        self.process, self.sandbox, self.written = process, sandbox, queue.SimpleQueue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        size = 0
        with contextlib.suppress(OSError, ValueError):
            while size < OUTPUT and (part := os.read(self.process.stdout.fileno(), 2**16)):
                size += len(part)
                self.written.put(part)
        self.written.put(b"")  # the end

    def give(self, data: bytes, last: bool) -> None:
        """Write to the program, which may not listen."""

        def write():
            with contextlib.suppress(OSError, ValueError):
                self.process.stdin.write(data)
                self.process.stdin.flush()
                if last:
                    self.process.stdin.close()

        threading.Thread(target=write, daemon=True).start()

    def parts(self, seconds: float) -> Iterator[bytes]:
        """What the program writes, until it closes its output.

        Raises:
            TimeUp: after so many seconds, or as many of processor time.
            Died: if it took too much of something.
        """
        end, before, ended = time.monotonic() + seconds, None, None
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                if not (part := self.written.get(timeout=min(left, POLL_SECONDS))):
                    return
                yield part
            family = _family(self.process.pid)
            if fault := _too_much(family, self.sandbox):
                raise Died(fault)
            if psutil.virtual_memory().available < RESERVED_MEMORY:  # whoever took it: the grader runs this one again
                raise Died("The machine has no memory left.")
            before = _processor_seconds(family) if before is None else before
            if _processor_seconds(family) - before > seconds:
                break
            if self.process.poll() is not None:  # what it wrote last may be on its way
                ended = ended or time.monotonic()
                if time.monotonic() - ended > 1:
                    return
        raise TimeUp

    def end(self) -> None:
        """End the program and all that it started: what stands below it, and its group."""
        alive = self.process.poll() is None  # else its number may be another's by now
        for one in reversed(_family(self.process.pid) if alive else []):
            with contextlib.suppress(psutil.Error):
                one.kill()
        if os.name == "posix" and (alive or not self.sandbox):  # a sandbox ends with its first process
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.reader.join(5)
        if not self.reader.is_alive():  # without a sandbox, somebody who left the group may still hold the pipe
            self.process.stdout.close()


def _environment(home: str, passed_on: dict[str, str]) -> dict[str, str]:
    """All variables that a program sees."""
    env = passed_on | dict.fromkeys(("HOME", "USERPROFILE", "IPYTHONDIR", "TMPDIR", "TEMP", "MPLCONFIGDIR"), home)
    env |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUSERBASE": site.getuserbase()}
    return env | {"COURSE_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "USER": "student"}


@contextlib.contextmanager
def _started(arguments: list[str], sandbox: Sandbox | None):
    """A Python program that runs, until the block ends."""
    with tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True) as scratch:
        command = [sys.executable, *arguments]
        limit = [sys.executable, "-I", "-S", "-c", LIMIT]
        if sandbox:
            env = _environment("/tmp", {})
            command = [*sandbox, *limit, str(2 * PROCESSES), *command]
        else:
            names = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SYSTEMROOT", "COMSPEC")
            env = _environment(scratch, {name: os.environ[name] for name in names if name in os.environ})
        if os.name == "posix":
            command = [*limit, "", *command]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, cwd=scratch, env=env, start_new_session=True,
        )  # fmt: skip
        program = _Program(process, sandbox)
        try:
            yield program
        finally:
            program.end()


def run_limited(argv: list[str], given: bytes, seconds: float, sandbox: Sandbox | None) -> bytes:
    """What a Python program writes when it is given some bytes to read.

    Args:
        argv: after the name of Python, such as ["-m", "checks.notebook"]; `tools` is not inside the sandbox.

    Raises:
        TimeUp: if it has not ended after so many seconds.
        Died: if it fails, writes more than 10 MB or takes too much of something.
    """
    with _started(argv, sandbox) as program:
        program.give(given, last=True)
        written = b"".join(program.parts(seconds))
        if len(written) >= OUTPUT:
            raise Died(f"It wrote more than {OUTPUT / 1e6:g} MB.")
        with contextlib.suppress(subprocess.TimeoutExpired):
            if program.process.wait(30) == 0:
                return written
        raise Died("The program failed.")


@contextlib.contextmanager
def fresh_kernel(sandbox: Sandbox | None):
    """A function `ask(question, seconds) -> reply` of a new IPython, in the sandbox: see sandbox_kernel.py."""
    code = Path(__file__).with_name("sandbox_kernel.py").read_text(encoding="utf-8")
    with _started(["-c", code], sandbox) as program:
        try:
            ask(program, {"code": ""}, START)
        except (TimeUp, Died) as error:
            raise RuntimeError(f"Python does not start, or cannot import torch. {error}") from error
        yield functools.partial(ask, program)


def ask(program: _Program, question: dict, seconds: float) -> dict:
    """A program's reply to a question."""
    number, rest = secrets.token_hex(16), b""
    program.give(f"{json.dumps(question)}\n{number}\n".encode(), last=False)
    for part in program.parts(seconds):
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
                said = json.loads(line)
                if said["id"] == number:
                    return said["reply"]
    raise Died("The program ended the kernel.")
