"""Saving, training and `make notebooks` that are stopped at any moment leave the old state or the new, never half."""

import os
import subprocess
import sys
from dataclasses import replace

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

SMALL = replace(TINY, dim=16, n_layers=1, hidden_dim=32, head_dim=4, max_seq_len=16)


def train_into(keep):
    torch.manual_seed(0)
    model, tokens = Llama(SMALL), torch.randint(64, (400,), generator=torch.Generator().manual_seed(1))
    losses = train.train(model, lambda: tokens, steps=12, batch_size=2, warm_up=5, keep=keep, every=2)
    return [torch.tensor(losses), *model.state_dict().values()]


def save_into(folder):
    torch.manual_seed(0)
    save_checkpoint(Llama(SMALL), folder)
    return list(load_checkpoint(folder).state_dict().values())


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
        train_into(keep)
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


KILLED = """
import os, sys
from pathlib import Path
from tests import test_nothing_lost

rename = os.replace
os.replace = lambda old, new: os._exit(9) if new.exists() else rename(old, new)
os.rename = lambda old, new: os._exit(9)
getattr(test_nothing_lost, sys.argv[1])(Path(sys.argv[2]))
"""


KILLED = """
import os, sys
from pathlib import Path
from tests import test_nothing_lost

rename = os.replace
os.replace = lambda old, new: os._exit(9) if new.exists() else rename(old, new)  # the second save
os.rename = lambda old, new: os._exit(9)
getattr(test_nothing_lost, sys.argv[1])(Path(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("work", [train_into, save_into])
def test_what_a_kill_before_a_rename_leaves_does_not_disturb_the_next_try(work, tmp_path):
    """A kill tidies nothing up. A run goes on from its last save, as if it had not been killed."""
    place = tmp_path / "mine"
    assert subprocess.run([sys.executable, "-c", KILLED, work.__name__, place], cwd=ROOT).returncode == 9
    assert len(list(tmp_path.glob(".mine.*"))) == 1  # what was not renamed
    if work is save_into:
        assert not place.exists()
    else:
        assert len(torch.load(place, weights_only=True)["losses"]) == 2
    assert all(map(torch.equal, work(place), work(tmp_path / "whole")))
