"""Saving, training and `make notebooks` that are stopped at any moment leave the old state or the new, never half."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import nbformat
import pytest
import torch

from helpers import train
from helpers.checkpoint import load_checkpoint, save_checkpoint
from helpers.model import Llama
from tests.support.course import ROOT
from tests.support.models import TINY
from tools import notebooks
from tools.course import write_beside

WIDE = replace(TINY, vocab_size=2000, dim=256, head_dim=64, hidden_dim=512)  # 12 MB: writing takes a while
SMALL = replace(TINY, dim=16, n_layers=1, hidden_dim=32, head_dim=4, max_seq_len=16)
STEPS = 40


def fork(task, seconds=None):
    """Run task() in a child, and kill it after that time; returns whether it was still at work."""
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


def kill_save(place):
    model, folder = Llama(WIDE), place / "saved"

    def check():
        if folder.exists():
            found = load_checkpoint(folder).state_dict()
            assert all(torch.equal(found[name], weight) for name, weight in model.state_dict().items())

    reset = partial(shutil.rmtree, folder, ignore_errors=True)
    kill_often(lambda: save_checkpoint(model, folder), check, 10, reset)
    reset()
    save_checkpoint(model, folder)  # what was left beside the folder does not disturb the next save
    check()


def run(keep):
    torch.manual_seed(0)
    model, tokens = Llama(SMALL), torch.randint(64, (400,), generator=torch.Generator().manual_seed(1))
    losses = train.train(model, lambda: tokens, steps=STEPS, batch_size=2, warm_up=5, keep=keep, every=2)
    return {"losses": losses, "model": model.state_dict()}


def kill_train(place):
    keep, whole, again, found = place / "mine.unfinished", place / "whole", place / "again", []
    fork(lambda: torch.save(run(None), whole))

    def check():
        found.append(len(torch.load(keep, weights_only=True)["losses"]) if keep.exists() else 0)

    def reset():
        if not found or found[-1] == STEPS:  # it had finished: the next run starts from the beginning
            keep.unlink()

    kill_often(lambda: run(keep), check, 10, reset)
    assert set(found) - {0, STEPS}, "no kill came in the middle: the test proves nothing"
    fork(lambda: torch.save(run(keep), again))
    whole, again = (torch.load(path, weights_only=True) for path in (whole, again))
    assert whole["losses"] == again["losses"]
    assert all(torch.equal(whole["model"][name], weight) for name, weight in again["model"].items())


def test_a_file_changes_by_a_rename_alone(tmp_path, monkeypatch):
    """So there is no moment at which half of it is there, whether or not a kill happens to meet it."""
    keep, text, rename, renamed = tmp_path / "mine.unfinished", tmp_path / "text", os.replace, []

    def once(source, target):
        if target in renamed:
            raise KeyboardInterrupt("stopped before the rename")
        renamed.append(target)
        rename(source, target)

    monkeypatch.setattr(os, "replace", once)
    with pytest.raises(KeyboardInterrupt, match="stopped"):
        run(keep)
    assert len(torch.load(keep, weights_only=True)["losses"]) == 2  # of the first save; the second was stopped
    write_beside(text, "old")
    with pytest.raises(KeyboardInterrupt, match="stopped"):
        write_beside(text, "new")
    assert text.read_text(encoding="utf-8") == "old"
    nbformat.write(nbformat.v4.new_notebook(), notebook := tmp_path / "a.ipynb")
    old = notebook.read_bytes()
    renamed.append(notebook)
    monkeypatch.setattr(notebooks.NotebookClient, "execute", lambda client: client.nb.metadata.update(new=1))
    with pytest.raises(KeyboardInterrupt, match="stopped"):
        notebooks.execute(notebook)
    assert notebook.read_bytes() == old
    monkeypatch.setattr(os, "rename", lambda source, target: once(target, target))
    renamed.append(tmp_path / "saved")
    with pytest.raises(KeyboardInterrupt, match="stopped"):
        save_checkpoint(Llama(SMALL), tmp_path / "saved")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".mine.unfinished.part", "a.ipynb", keep.name, "text"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot fork: run this on Linux or macOS")
@pytest.mark.parametrize("work", [kill_save, kill_train])
def test_what_is_killed_leaves_the_old_state_or_the_new_and_goes_on(work, tmp_path):
    """In a Python of its own: nothing else there has threads, which a fork would lose."""
    code = "import sys, pathlib, torch._dynamo; torch.set_num_threads(1); "  # or every child would import it
    code += f"from {work.__module__} import {work.__name__} as work; work(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
