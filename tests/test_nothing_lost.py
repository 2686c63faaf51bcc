"""Saving and `make notebooks` that are stopped at any moment leave the old state or the new, never half."""

import os

import nbformat
import pytest

from helpers.checkpoint import save_checkpoint
from helpers.model import Llama
from tests.support.models import SMALL
from tools import notebooks
from tools.course import write_beside


def test_a_file_changes_by_a_rename_alone(tmp_path, monkeypatch):
    """So there is no moment at which half of it is there, whether or not a kill happens to meet it."""
    text, rename, renamed = tmp_path / "text", os.replace, []

    def once(source, target):
        if target in renamed:
            raise KeyboardInterrupt("stopped before the rename")
        renamed.append(target)
        rename(source, target)

    monkeypatch.setattr(os, "replace", once)
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
    assert left == ["a.ipynb", "text"]
