"""A fresh kernel for a student's program: isolated by bubblewrap, with limits of time, memory and disk.

In isolation (Linux, `bwrap`) there is no network, no file of yours is writable, your home folder and the submissions
cannot be seen, and nothing survives the exercise. Without it a program runs as you, with your network and your files.
On Linux a program gets 4 GiB of memory beside torch, and files of up to 64 MiB, isolated or not.
"""

import contextlib
import os
import shutil
import site
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from queue import Empty

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager
from jupyter_core.utils import ensure_event_loop
from traitlets.config import Config

from tools.classroom.hand_out import ROOT

START = 120  # seconds for a kernel to start and import torch, which is not the learner's time
PREPARE = """
def _limit():
    import contextlib, os, torch
    with contextlib.suppress(ImportError, OSError, ValueError):  # not on Windows; memory on Linux only
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**26, 2**26))
        with open("/proc/self/statm") as pages:
            memory = int(pages.read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + 2**32
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
_limit()
del _limit
"""


class TimeUp(Exception):
    """The kernel has not answered in time."""


class Died(Exception):
    """The kernel's process has ended."""


def one_line(text, most: int = 300) -> str:
    """A text of unknown origin as one short line of printable characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in str(text)[:2000]).split())[:most]


def bwrap_command(scratch: str, hidden: list[Path]) -> list[str]:
    """The command that isolates what follows it. Later entries lie on top of earlier ones.

    Args:
        scratch: the one folder that stays writable: the kernel's sockets are there.
        hidden: submissions and results, so that nobody reads another's; what is not there yet is left out.
    """
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    command += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unsetenv", "JPY_PARENT_PID"]
    for place in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/run", str(Path.home()))):
        if place != "/" and Path(place).is_dir():
            command += ["--tmpfs", os.path.realpath(place)]
    for needed in dict.fromkeys((str(ROOT), sys.base_prefix, sys.prefix, site.getusersitepackages())):
        if Path(needed).is_dir():
            command += ["--ro-bind", os.path.realpath(needed), os.path.realpath(needed)]
    for path in (path.resolve() for path in hidden):
        command += ["--tmpfs", str(path)] * path.is_dir() + ["--ro-bind", os.devnull, str(path)] * path.is_file()
    return [*command, "--bind", scratch, scratch, "--chdir", "/tmp", "--"]


def why_not_isolated(hidden: list[Path]) -> str:
    """Why students' programs cannot be isolated on this machine, in words; empty if they can."""
    if not shutil.which("bwrap"):
        return "bubblewrap (the command bwrap) is not installed"
    with tempfile.TemporaryDirectory(prefix="grade-") as scratch:
        command = [*bwrap_command(os.path.realpath(scratch), hidden), sys.executable, "-c", "import helpers"]
        environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(ROOT)}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"bwrap does not work here: {one_line(error)}"
    return f"bwrap does not work here: {one_line(done.stderr)}" if done.returncode else ""


class _Spec(KernelSpecManager):
    """One kernel: this Python, inside the isolating command if there is one."""

    def get_kernel_spec(self, kernel_name):
        argv = [*self.prefix, sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=[*argv, "--HistoryManager.enabled=False"], display_name="Python 3", language="python")


@contextlib.contextmanager
def fresh_kernel(hidden: list[Path] | None):
    """A function `ask(code, expression, seconds) -> reply` of a new kernel; isolated unless `hidden` is None."""
    with tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True) as scratch:
        scratch = os.path.realpath(scratch)
        specs = _Spec()
        specs.prefix = [] if hidden is None else bwrap_command(scratch, hidden)
        transport = "ipc" if os.name == "posix" else "tcp"  # no port, which another program might take first
        config = Config(KernelManager={"transport": transport, "transport_encryption": "auto"})
        manager = KernelManager(
            kernel_spec_manager=specs, connection_file=os.path.join(scratch, "kernel.json"), config=config
        )
        passed_on = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SYSTEMROOT", "COMSPEC")
        env = {name: os.environ[name] for name in passed_on if name in os.environ}
        home = scratch if hidden is None else "/tmp"
        env |= dict.fromkeys(("HOME", "USERPROFILE", "IPYTHONDIR", "TMPDIR", "TEMP", "MPLCONFIGDIR"), home)
        env |= {"PYTHONPATH": str(ROOT), "COURSE_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
        manager.start_kernel(cwd=scratch, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = manager.client()
        try:
            client.start_channels(stdin=False)
            client.wait_for_ready(timeout=START)
            client.iopub_channel.stop()  # nobody listens to what is printed, however much it is
            _prepare(manager, client)
            yield lambda code, expression, seconds: _ask(manager, client, code, expression, seconds)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)  # and whatever it started in its process group
            ensure_event_loop().close()  # jupyter_client makes one per thread and leaves it open


def _prepare(manager, client):
    try:
        _ask(manager, client, PREPARE, "", START)
    except (TimeUp, Died) as error:
        raise RuntimeError("the kernel does not start, or cannot import torch") from error


def _ask(manager, client, code, expression, seconds):
    """Run code, then evaluate an expression; the reply's content."""
    wanted = {"verdict": expression} if expression else {}
    sent = client.execute(code, silent=True, store_history=False, user_expressions=wanted, allow_stdin=False)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        with contextlib.suppress(Empty):
            reply = client.get_shell_msg(timeout=min(left, 0.5))
            if reply["parent_header"].get("msg_id") == sent:
                return reply["content"]
            continue
        if not manager.is_alive():
            raise Died
    raise TimeUp
