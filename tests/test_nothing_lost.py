"""A process that is killed at any moment leaves the old state or the new one, never half of it, and both load.

A worker imports everything once and forks a child for every kill; `python -m tests.test_nothing_lost` is that worker.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
import torch

from helpers import train
from helpers.checkpoint import load_checkpoint, save_checkpoint
from helpers.model import Llama
from tests.support.models import TINY
from tools import notebooks as make_notebooks

ROOT = Path(__file__).parent.parent
KILLS = {"save": 20, "train": 18, "write notebook": 16, "make notebook": 5}  # at least so many, each in the middle
WIDE = replace(TINY, vocab_size=2000, dim=256, head_dim=64, hidden_dim=512)  # 12 MB: writing takes a while
SMALL = replace(TINY, dim=16, n_layers=1, hidden_dim=32, head_dim=4, max_seq_len=16)
STEPS = 40


# --------------------------------------------------------------------------------- the worker and its children


def fork(task):
    """Start task() in a child; returns its process number once it has begun."""
    ready, begun = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.write(begun, b"x")
            task()
            code = 0
        finally:
            os._exit(code)
    os.read(ready, 1)
    os.close(ready)
    os.close(begun)
    return child


def kill_after(task, seconds):
    """Run task() in a child, kill it after that time; returns whether it was still at work."""
    child = fork(task)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), f"the task failed by itself: {status}"
    return status != 0


def duration(task, reset=lambda: None):
    """Seconds from a task's beginning to its end: the shortest of three, without the machine's pauses.

    How long the process then takes to be gone does not count; under coverage it is longer than the task.
    """
    seconds = []
    for _ in range(3):
        reset()
        ready, done = os.pipe()
        child = fork(lambda done=done: (task(), os.write(done, b"x")))
        start = time.perf_counter()
        os.close(done)
        os.read(ready, 1)
        seconds.append(time.perf_counter() - start)
        os.close(ready)
        assert os.waitpid(child, 0)[1] == 0
    return min(seconds)


def kill_often(task, check, n_kills, reset=lambda: None):
    """Kill the task n_kills times at random moments; `check` says after each which state it found; counts them."""
    draw, found, killed = random.Random(0), {}, 0
    longest = duration(task, reset)
    while killed < n_kills:
        reset()
        if kill_after(task, draw.uniform(0, longest)):
            killed += 1
        state = check()
        found[state] = found.get(state, 0) + 1
    return {"killed": killed, "found": found}


def same_weights(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def kill_save(place):
    """The folder is not there, or whole; what a killed save leaves beside it does not stop the next one."""
    model, folder = Llama(WIDE), place / "saved"

    def reset():
        if folder.exists():
            folder.rename(place / f"done-{time.monotonic_ns()}")

    def check():
        if not folder.exists():
            return "old"
        assert same_weights(load_checkpoint(folder), model), "another model"
        return "new"

    report = kill_often(lambda: save_checkpoint(model, folder, card="a card"), check, KILLS["save"], reset)
    reset()
    save_checkpoint(model, folder)
    assert check() == "new"
    return report


def run(keep, steps=STEPS):
    torch.manual_seed(0)
    model, tokens = Llama(SMALL), torch.randint(64, (400,), generator=torch.Generator().manual_seed(1))
    losses = train.train(model, lambda: tokens, steps=steps, batch_size=2, warm_up=5, keep=keep, every=2)
    return {"losses": losses, "model": model.state_dict()}


def kill_train(place):
    """One run that is killed again and again goes on each time, and ends as if nothing had happened."""
    keep, results = place / "mine.unfinished", place / "results"
    whole = duration(lambda: torch.save(run(None), results))
    draw, killed, lengths = random.Random(0), 0, []
    while killed < KILLS["train"]:
        killed += kill_after(lambda: run(keep), draw.uniform(0, whole))
        lengths.append(len(torch.load(keep, weights_only=True)["losses"]) if keep.exists() else 0)
        if lengths[-1] == STEPS:  # finished in spite of it: the next run starts from the beginning
            keep.unlink()
    child = fork(lambda: torch.save(run(keep), place / "again"))
    assert os.waitpid(child, 0)[1] == 0
    first, again = (torch.load(place / name, weights_only=True) for name in ("results", "again"))
    assert first["losses"] == again["losses"]
    assert all(torch.equal(first["model"][name], weight) for name, weight in again["model"].items())
    resumed = sum(0 < length < STEPS for length in lengths)
    return {"killed": killed, "found": {"old": resumed, "new": len(lengths) - resumed}}


def notebook_killer(place, prepare):
    """Task and check for a notebook that make_notebooks replaces: the old bytes, or new and whole."""
    path = place / "tiny.ipynb"
    cells = [nbformat.v4.new_code_cell("print('x' * 100_000)"), nbformat.v4.new_code_cell("1 + 1")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    old = path.read_bytes()

    def check():
        if path.read_bytes() == old:
            return "old"
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert make_notebooks.is_up_to_date(notebook)
        assert notebook.cells[0].outputs[0].text == "x" * 100_000 + "\n"
        return "new"

    def task():
        prepare()
        make_notebooks.execute(path)

    return task, check, lambda: path.write_bytes(old)


class NoKernel:
    """Stands for nbclient's client: the outputs are there at once, so that kills hit what comes after them."""

    def __init__(self, notebook, **settings):
        self.notebook = notebook

    def execute(self):
        for number, cell in enumerate(self.notebook.cells, start=1):
            cell.execution_count = number
        self.notebook.cells[0].outputs = [nbformat.v4.new_output("stream", text="x" * 100_000 + "\n")]


def kill_write_notebook(place):
    def prepare():
        make_notebooks.NotebookClient = NoKernel

    task, check, reset = notebook_killer(place, prepare)
    return kill_often(task, check, KILLS["write notebook"], reset)


def kill_make_notebook(place):
    """With a kernel; it ends by itself when the process that started it is gone."""
    task, check, reset = notebook_killer(place, lambda: None)
    return kill_often(task, check, KILLS["make notebook"], reset)


TASKS = {
    "save": kill_save, "train": kill_train, "write notebook": kill_write_notebook, "make notebook": kill_make_notebook,
}  # fmt: skip


# ------------------------------------------------------------------------------------------------- the tests


def work(what, place):
    """What the worker reports about one task: how often it killed, and how often it found which state."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.test_nothing_lost", what, str(place)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_there_are_at_least_50_kills():
    assert sum(KILLS.values()) >= 50


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
@pytest.mark.parametrize("what", TASKS)
def test_killed_at_random_moments_the_old_state_or_the_new_is_there(tmp_path, what):
    report = work(what, tmp_path)
    assert report["killed"] == KILLS[what]
    assert report["found"].get("old", 0) > 0, "no kill came before the end: the test proves nothing"


if __name__ == "__main__":
    import torch._dynamo  # the optimizer would import it in every child, and kills would fall into that

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=sys.argv[2]) as folder:
        print(json.dumps(TASKS[sys.argv[1]](Path(folder))))
