"""Saving and training that are killed at any moment leave the old state or the new one, never half of it."""

import os
import random
import time
from dataclasses import replace

import pytest
import torch

from helpers import train
from helpers.checkpoint import load_checkpoint, save_checkpoint
from helpers.model import Llama
from tests.support.kills import alone, duration, fork, kill_after, kill_often, needs_fork
from tests.support.models import TINY

pytestmark = [pytest.mark.slow, needs_fork]
WIDE = replace(TINY, vocab_size=2000, dim=256, head_dim=64, hidden_dim=512)  # 12 MB: writing takes a while
SMALL = replace(TINY, dim=16, n_layers=1, hidden_dim=32, head_dim=4, max_seq_len=16)
STEPS = 40


def kill_save(place):
    model, folder = Llama(WIDE), place / "saved"
    expected = model.state_dict()

    def reset():
        if folder.exists():
            folder.rename(place / f"done-{time.monotonic_ns()}")

    def check():
        if not folder.exists():
            return "old"
        assert all(torch.equal(expected[name], weight) for name, weight in load_checkpoint(folder).state_dict().items())
        return "new"

    found = kill_often(lambda: save_checkpoint(model, folder, card="a card"), check, 10, reset)
    reset()
    save_checkpoint(model, folder)  # what was left beside the folder does not disturb the next save
    assert check() == "new"
    return found


def test_a_folder_is_saved_whole_or_not_at_all(tmp_path):
    assert alone(kill_save, tmp_path).get("old"), "no kill came before the end: the test proves nothing"


def run(keep):
    torch.manual_seed(0)
    model, tokens = Llama(SMALL), torch.randint(64, (400,), generator=torch.Generator().manual_seed(1))
    losses = train.train(model, lambda: tokens, steps=STEPS, batch_size=2, warm_up=5, keep=keep, every=2)
    return {"losses": losses, "model": model.state_dict()}


def kill_train(place):
    keep, whole, again = place / "mine.unfinished", place / "whole", place / "again"
    longest = duration(lambda: torch.save(run(None), whole))
    draw, killed, found = random.Random(0), 0, {"begun": 0, "went on": 0}
    while killed < 10:
        killed += kill_after(lambda: run(keep), draw.uniform(0, longest))
        n_steps = len(torch.load(keep, weights_only=True)["losses"]) if keep.exists() else 0
        found["went on" if 0 < n_steps < STEPS else "begun"] += 1
        if n_steps == STEPS:  # it had finished: the next run starts from the beginning
            keep.unlink()
    assert os.waitpid(fork(lambda: torch.save(run(keep), again)), 0)[1] == 0
    whole, again = (torch.load(path, weights_only=True) for path in (whole, again))
    assert whole["losses"] == again["losses"]
    assert all(torch.equal(whole["model"][name], weight) for name, weight in again["model"].items())
    return found


def test_a_run_that_is_killed_again_and_again_ends_as_if_nothing_had_happened(tmp_path):
    assert alone(kill_train, tmp_path)["went on"], "no kill came in the middle: the test proves nothing"
