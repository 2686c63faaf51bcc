"""The command that trains a small model: it writes a whole folder, and overwrites nothing."""

import sys

import pytest

from helpers import corpus
from helpers.checkpoint import load_checkpoint
from helpers.corpus import bits_per_byte, train_val_split
from helpers.text import excerpt, load_tokenizer
from tests.support.models import SMALL
from tools import tiny_llama


@pytest.fixture
def command(monkeypatch, tmp_path):
    """command("--out", ...) runs the command with a smaller model on a shorter text."""
    own = tmp_path / "own.txt"
    own.write_text("\n\n".join(f"{number} lines. " + excerpt() for number in range(40)), encoding="utf-8")

    def command(*arguments):
        monkeypatch.setattr(tiny_llama, "TINY", SMALL)
        monkeypatch.setattr(sys, "argv", ["tiny_llama", *map(str, arguments)])
        tiny_llama.main()

    command.own = own
    return command


def test_the_command_writes_a_model_from_your_own_text_and_overwrites_none(command, tmp_path, capsys):
    out = tmp_path / "models" / "mine"
    command("--out", out, "--text", command.own, "--steps", 3)
    model, tokenizer = load_checkpoint(out), load_tokenizer(out)
    card = (out / "README.md").read_text(encoding="utf-8")
    _, held_out = train_val_split(corpus.load_text(command.own))
    assert f"{bits_per_byte(model, tokenizer, held_out):.2f} bits per byte" in card
    assert f"--text {command.own} --steps 3 --seed 0" in card
    assert sorted(path.name for path in out.parent.iterdir()) == ["mine"]
    with pytest.raises(SystemExit):
        command("--out", out, "--text", command.own, "--steps", 3)
    assert "exists and is kept: choose another name" in capsys.readouterr().err
