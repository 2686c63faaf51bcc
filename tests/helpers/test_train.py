"""Training: the loss falls, a stopped run goes on as if it had not stopped, nothing that exists is overwritten."""

import math
import sys
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from helpers import text, train
from helpers.checkpoint import load_checkpoint
from helpers.config import LlamaConfig
from helpers.model import Llama
from helpers.text import bits_per_byte, encode, excerpt, held_out_split, load_tokenizer, train_tokenizer
from helpers.train import learning_rate

SMALL = LlamaConfig(
    vocab_size=300, dim=16, n_layers=1, n_heads=2, n_kv_heads=1, hidden_dim=32,
    max_seq_len=16, norm_eps=1e-5, rope_theta=10_000.0, tie_embeddings=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    """A small tokenizer, trained on the fixed excerpt."""
    return train_tokenizer(excerpt(), vocab_size=300)


@pytest.fixture
def run(tokenizer):
    """run(steps, ...) trains a fresh small model whose text is cut anew at each pass; returns losses and weights."""

    def run(**settings):
        torch.manual_seed(0)
        model, draw = Llama(SMALL), torch.Generator().manual_seed(1)
        settings = {"steps": 25, "batch_size": 4, "warm_up": 5, "every": 4} | settings
        losses = train.train(
            model, lambda: encode(text.without_some_merges(tokenizer, 0.1, draw), excerpt()), **settings
        )
        return losses, model.state_dict()

    return run


class Stopped(Exception):
    """Stands for a power cut."""


def stop_after(last):
    def report(step, loss):
        if step == last:
            raise Stopped

    return report


def test_learning_rate_rises_to_its_peak_and_falls_to_a_tenth():
    rates = [learning_rate(step, 1000, 3.0) for step in range(1001)]
    assert rates[0] == pytest.approx(0.03)
    assert max(rates) == rates[100] == pytest.approx(3.0)
    assert rates[1000] == pytest.approx(0.3)
    assert rates[:101] == sorted(rates[:101])
    assert rates[100:] == sorted(rates[100:], reverse=True)


def test_training_starts_at_an_even_guess_and_improves(run):
    losses, _ = run(steps=60)
    assert losses[0] == pytest.approx(math.log(SMALL.vocab_size), abs=0.1)
    assert sum(losses[-5:]) / 5 < losses[0] - 0.5


@pytest.mark.parametrize("last", [4, 6, 24])
def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(run, tmp_path, last):
    losses, weights = run()
    keep = tmp_path / "a new folder" / "run.unfinished"
    with pytest.raises(Stopped):
        run(keep=keep, report=stop_after(last))
    kept = torch.load(keep, weights_only=True)
    assert len(kept["losses"]) == last // 4 * 4
    again, weights_again = run(keep=keep)
    assert again == losses
    assert all(torch.equal(weights[name], weights_again[name]) for name in weights)


def test_a_run_that_goes_on_repeats_no_finished_step(run, tmp_path):
    steps = []
    with pytest.raises(Stopped):
        run(keep=tmp_path / "kept", report=stop_after(9))
    run(keep=tmp_path / "kept", report=lambda step, loss: steps.append(step))
    assert steps == list(range(9, 26))


def test_a_stop_while_the_file_is_written_leaves_the_one_before(run, tmp_path, monkeypatch):
    keep = tmp_path / "kept"
    with pytest.raises(Stopped):
        run(keep=keep, report=stop_after(5))
    before = keep.read_bytes()

    def cut_off(state, path):
        path.write_bytes(b"half a file")
        raise Stopped

    monkeypatch.setattr(train.torch, "save", cut_off)
    with pytest.raises(Stopped):
        run(keep=keep)
    assert keep.read_bytes() == before


@pytest.mark.parametrize("other", [{"steps": 26}, {"seed": 1}, {"batch_size": 2}, {"peak": 1e-3}])
def test_another_run_is_refused_and_kept(run, tmp_path, other):
    keep = tmp_path / "kept"
    run(keep=keep)
    before = keep.read_bytes()
    with pytest.raises(ValueError, match=r"kept holds another run:(.|\n)*This one is:(.|\n)*another name"):
        run(keep=keep, **other)
    assert keep.read_bytes() == before


def test_another_text_is_another_run(run, tmp_path, monkeypatch):
    run(keep=tmp_path / "kept")
    monkeypatch.setattr(sys.modules[__name__], "excerpt", lambda: text.excerpt() + "!")
    with pytest.raises(ValueError, match="holds another run"):
        run(keep=tmp_path / "kept")


@pytest.mark.parametrize("content", [b"", b"not a run", b"PK\x03\x04 cut"])
def test_a_damaged_file_is_named(run, tmp_path, content):
    (tmp_path / "kept").write_bytes(content)
    with pytest.raises(ValueError, match=r"kept is damaged or no kept run \(\w+\): move it away"):
        run(keep=tmp_path / "kept")


# ------------------------------------------------------------------------------------------- bits per byte


@pytest.mark.parametrize("n_tokens", [2, 16, 17, 24, 25, 40, 41])
def test_every_token_is_counted_once(tokenizer, n_tokens):
    model = Llama(SMALL)
    some = tokenizer.decode(encode(tokenizer, excerpt())[:n_tokens].tolist())
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()  # every token is equally likely
    expected = len(encode(tokenizer, some)) * math.log2(SMALL.vocab_size) / len(some.encode())
    assert bits_per_byte(model, tokenizer, some) == pytest.approx(expected)


@pytest.mark.parametrize("most", [1, 3 * 16 * 300, 2**22])  # windows at a time: 1, 3, all
def test_windows_are_judged_as_if_one_by_one(tokenizer, monkeypatch, most):
    monkeypatch.setattr(text, "MOST_LOGITS", most)
    model, some = Llama(SMALL), excerpt()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)  # so that a shifted or forgotten token shows
    tokens, half = encode(tokenizer, some), SMALL.max_seq_len // 2
    losses = [math.log(300)]
    for at in range(1, len(tokens)):  # read from the start of the window that judges it
        start = max(0, (at - 1) // half - 1) * half
        logits = model(tokens[None, start:at], last_only=True)[0]
        losses.append(F.cross_entropy(logits, tokens[at : at + 1]).item())
    assert len(tokens) > 6 * SMALL.max_seq_len
    assert bits_per_byte(model, tokenizer, some) == pytest.approx(sum(losses) / math.log(2) / len(some.encode()))


def test_bits_per_byte_of_a_short_text_are_its_loss(tokenizer):
    model, some = Llama(replace(SMALL, max_seq_len=64)), excerpt()[:40]
    tokens = encode(tokenizer, some)
    nats = math.log(300) + F.cross_entropy(model(tokens[None, :-1])[0], tokens[1:], reduction="sum").item()
    assert bits_per_byte(model, tokenizer, some) == pytest.approx(nats / math.log(2) / 40)


# ------------------------------------------------------------------------------------------- the command


@pytest.fixture
def command(monkeypatch, tmp_path):
    """command("--out", ...) runs the command with a smaller model on a shorter text."""
    own = tmp_path / "own.txt"
    own.write_text("\n\n".join(f"{number} lines. " + excerpt() for number in range(40)), encoding="utf-8")

    def command(*arguments):
        monkeypatch.setattr(train, "TINY", SMALL)
        monkeypatch.setattr(sys, "argv", ["train", *map(str, arguments)])
        train.main()

    command.own = own
    return command


def test_the_command_writes_a_model_from_your_own_text(command, tmp_path, capsys):
    out = tmp_path / "models" / "mine"
    command("--out", out, "--text", command.own, "--steps", 3)
    model, tokenizer = load_checkpoint(out), load_tokenizer(out)
    card = (out / "README.md").read_text(encoding="utf-8")
    _, held_out = held_out_split(text.load_text(command.own))
    assert f"{bits_per_byte(model, tokenizer, held_out):.2f} bits per byte" in card
    assert "`own.txt`" in card
    assert f"--text {command.own} --steps 3 --seed 0" in card
    assert "yours to choose" in card
    assert sorted(path.name for path in out.parent.iterdir()) == ["mine"]
    assert card in capsys.readouterr().out


def test_a_model_that_exists_is_never_overwritten(command, tmp_path, capsys):
    out = tmp_path / "mine"
    out.mkdir()
    with pytest.raises(SystemExit):
        command("--out", out, "--text", command.own, "--steps", 3)
    assert "exists and is kept: choose another name" in capsys.readouterr().err
    assert list(out.iterdir()) == []


def test_the_command_goes_on_after_a_stop(command, tmp_path, monkeypatch):
    command("--out", tmp_path / "whole", "--text", command.own, "--steps", 102)
    save = train.save_checkpoint

    def stop(*arguments):
        raise Stopped

    monkeypatch.setattr(train, "save_checkpoint", stop)
    with pytest.raises(Stopped):
        command("--out", tmp_path / "mine", "--text", command.own, "--steps", 102)
    assert (tmp_path / "mine.unfinished").exists()
    with pytest.raises(ValueError, match="holds another run"):
        command("--out", tmp_path / "mine", "--text", command.own, "--steps", 103)
    monkeypatch.setattr(train, "save_checkpoint", save)
    command("--out", tmp_path / "mine", "--text", command.own, "--steps", 102)
    whole, mine = (load_checkpoint(tmp_path / name).state_dict() for name in ("whole", "mine"))
    assert all(torch.equal(whole[name], mine[name]) for name in whole)
    assert not (tmp_path / "mine.unfinished").exists()
