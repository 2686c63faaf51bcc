"""Saving and training that are killed at any moment leave the old state or the new one, never half of it."""

import time
from dataclasses import replace

import pytest
import torch

from helpers import train
from helpers.checkpoint import load_checkpoint, save_checkpoint
from helpers.model import Llama
from tests.support.kills import alone, fork, kill_often, needs_fork
from tests.support.models import TINY

pytestmark = [pytest.mark.slow, needs_fork]
WIDE = replace(TINY, vocab_size=2000, dim=256, head_dim=64, hidden_dim=512)  # 12 MB: writing takes a while
SMALL = replace(TINY, dim=16, n_layers=1, hidden_dim=32, head_dim=4, max_seq_len=16)
STEPS = 40


def kill_save(place):
    model, folder = Llama(WIDE), place / "saved"

    def reset():
        if folder.exists():
            folder.rename(place / f"done-{time.monotonic_ns()}")

    def check():
        if folder.exists():
            found = load_checkpoint(folder).state_dict()
            assert all(torch.equal(found[name], weight) for name, weight in model.state_dict().items())

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


@pytest.mark.parametrize("work", [kill_save, kill_train])
def test_what_is_killed_leaves_the_old_state_or_the_new_and_goes_on(work, tmp_path):
    alone(work, tmp_path)
