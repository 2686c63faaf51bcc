"""The command that trains a small model: it writes a whole folder, and overwrites nothing."""

import re
import sys
from contextlib import nullcontext
from itertools import count

import pytest
from safetensors import SafetensorError

from helpers import corpus, save, train
from helpers.checkpoint import load_checkpoint
from helpers.corpus import bits_per_byte, train_val_split
from helpers.model import RMSNorm
from helpers.text import excerpt, load_tokenizer
from tests.support.models import SMALL
from tools import tiny_llama


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Run the command on a text of one's own, (folder, text, steps) -> None; the folder is not there yet."""
    own = tmp_path / "own.txt"
    own.write_text("".join(excerpt().replace("\n", f"\n{number} ") for number in range(40)), encoding="utf-8")
    (tmp_path / "only pictures").mkdir()
    (tmp_path / "only pictures" / "a.gif").write_bytes(b"GIF89a\xff")
    monkeypatch.setattr(tiny_llama, "TINY", SMALL)

    def run(out, text=own, steps=3):
        given = ["--out", str(out), "--text", str(tmp_path / text), "--steps", str(steps)]
        monkeypatch.setattr(sys, "argv", ["tiny_llama", *given])
        tiny_llama.main()

    return run


def is_trained(folder):
    norms = [part.weight for part in load_checkpoint(folder).modules() if isinstance(part, RMSNorm)]
    return all((norm != 1).any() for norm in norms)


@pytest.mark.parametrize(("error", "left"), [(KeyboardInterrupt, ["mine"]), (KeyError, [])])
def test_a_stop_keeps_what_is_learned_and_an_error_nothing(error, left, command, monkeypatch, tmp_path, capsys):
    numbers, real = count(1), train.training_step

    def step(*given):
        if next(numbers) == 14:
            raise error
        return real(*given)

    monkeypatch.setattr(train, "training_step", step)
    with pytest.raises(KeyError) if error is KeyError else nullcontext():
        command(tmp_path / "mine", steps=30)
    assert sorted(path.name for path in tmp_path.iterdir()) == [*left, "only pictures", "own.txt"]
    for name in left:
        assert is_trained(tmp_path / name)
        assert "(stopped at step 13)" in capsys.readouterr().out


def test_a_stop_while_it_is_judged_keeps_what_is_learned(command, monkeypatch, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny_llama, "bits_per_byte", stop)
    with pytest.raises(KeyboardInterrupt):
        command(tmp_path / "mine", steps=13)
    assert is_trained(tmp_path / "mine.unfinished")


WRONG = [  # what is asked for, and what the sentence says
    ({"text": "no.txt"}, "no.txt is not there"), ({"text": __file__}, "too few to learn from"),
    ({"steps": 0}, "steps=0 must be"), ({"text": "only pictures"}, r"0 characters .* are left out.* a\.gif"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_a_wrong_request_is_a_sentence(given, words, command, tmp_path, capsys):
    with pytest.raises(SystemExit):
        command(tmp_path / "mine", **given)
    assert re.search(f"error: .*{words}", capsys.readouterr().err)


def test_a_disk_that_takes_no_model_is_found_before_the_training(command, tmp_path, monkeypatch, capsys):
    def full(*_, **__):
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr(save, "save_file", full)
    monkeypatch.setattr(train, "training_step", lambda *_: pytest.fail("it was trained"))
    with pytest.raises(SystemExit):
        command(tmp_path / "runs" / "mine")
    assert "takes no model (No space left on device (os error 28)): is the disk full" in capsys.readouterr().err
    assert not list((tmp_path / "runs").iterdir())


def test_the_command_writes_a_model_from_your_own_text_and_overwrites_none(command, tmp_path, capsys):
    own, out = tmp_path / "own.txt", tmp_path / "models" / "mine"
    command(out)
    model, tokenizer = load_checkpoint(out), load_tokenizer(out)
    card = (out / "README.md").read_text(encoding="utf-8")
    _, held_out = train_val_split(corpus.load_text(own))
    assert f"{bits_per_byte(model, tokenizer, held_out):.2f} bits per byte" in card
    assert f"--text {own} --steps 3 --seed 0" in card
    assert sorted(path.name for path in out.parent.iterdir()) == ["mine"]
    with pytest.raises(SystemExit):
        command(out)
    assert "exists and is kept: choose another name" in capsys.readouterr().err
