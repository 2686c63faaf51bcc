"""Kill a task at random moments and look at what it leaves. Children are forked, so this needs a process of its own."""

import json
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
    """What work(place) returns when a new Python runs it: {state that was found after a kill: how often}."""
    code = (
        "import sys, pathlib, torch._dynamo; "  # the optimizer would import it in every child
        f"from tests.support.kills import report; from {work.__module__} import {work.__name__} as work; "
        "report(work(pathlib.Path(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(place)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def report(found):
    print(json.dumps(found))


def fork(task):
    """Start task() in a child; returns its process number."""
    torch.set_num_threads(1)
    child = os.fork()
    if not child:
        code = 1
        try:
            task()
            code = 0
        finally:
            os._exit(code)
    return child


def kill_after(task, seconds):
    """Run task() in a child, kill it after that time; returns whether it was still at work."""
    child = fork(task)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), f"the task failed by itself: {status}"
    return status != 0


def duration(task):
    """Seconds that a child needs for the task."""
    child, start = fork(task), time.perf_counter()
    assert os.waitpid(child, 0)[1] == 0
    return time.perf_counter() - start


def kill_often(task, check, n_kills, reset):
    """Kill the task in the middle so often; counts the states that check() finds after each try."""
    draw, found, killed = random.Random(0), {}, 0
    reset()
    longest = duration(task)
    while killed < n_kills:
        reset()
        killed += kill_after(task, draw.uniform(0, longest))
        state = check()
        found[state] = found.get(state, 0) + 1
    return found
