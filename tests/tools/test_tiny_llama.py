"""The command that trains a small model: it writes a whole folder, and overwrites nothing."""

import sys

import pytest

from helpers import corpus
from helpers.checkpoint import load_checkpoint
from helpers.corpus import bits_per_byte, train_val_split
from helpers.text import excerpt, load_tokenizer
from tests.support.models import SMALL
from tools import tiny_llama


def test_the_command_writes_a_model_from_your_own_text_and_overwrites_none(monkeypatch, tmp_path, capsys):
    own, out = tmp_path / "own.txt", tmp_path / "models" / "mine"
    own.write_text("\n\n".join(f"{number} lines. " + excerpt() for number in range(40)), encoding="utf-8")
    monkeypatch.setattr(tiny_llama, "TINY", SMALL)
    monkeypatch.setattr(sys, "argv", ["tiny_llama", "--out", str(out), "--text", str(own), "--steps", "3"])
    tiny_llama.main()
    model, tokenizer = load_checkpoint(out), load_tokenizer(out)
    card = (out / "README.md").read_text(encoding="utf-8")
    _, held_out = train_val_split(corpus.load_text(own))
    assert f"{bits_per_byte(model, tokenizer, held_out):.2f} bits per byte" in card
    assert f"--text {own} --steps 3 --seed 0" in card
    assert sorted(path.name for path in out.parent.iterdir()) == ["mine"]
    with pytest.raises(SystemExit):
        tiny_llama.main()
    assert "exists and is kept: choose another name" in capsys.readouterr().err
