"""Kill a task at random moments and look at what it leaves. Children are forked, so this needs a process of its own."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

from tests.support.course import ROOT

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot fork: run this on Linux or macOS")


def alone(work, place):
    """Let a new Python run work(place)."""
    code = "import sys, pathlib, torch._dynamo; "  # the optimizer would import it in every child
    code += f"from {work.__module__} import {work.__name__} as work; work(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-W", "ignore", "-c", code, str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def fork(task, seconds=None):
    """Run task() in a child, and kill it after that time; returns whether it was still at work."""
    torch.set_num_threads(1)
    child = os.fork()
    if not child:
        code = 1
        try:
            task()
            code = 0
        finally:
            os._exit(code)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), f"the task failed by itself: {status}"
    return status != 0


def kill_often(task, check, n_kills, reset):
    """Kill the task in the middle so often; after each try check() looks at what is there."""
    draw, killed, start = random.Random(0), 0, time.perf_counter()
    fork(task)
    longest = time.perf_counter() - start
    while killed < n_kills:
        reset()
        killed += fork(task, draw.uniform(0, longest))
        check()
