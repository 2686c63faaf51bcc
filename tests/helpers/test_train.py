"""Training: the rate rises and falls, matrices decay, the loss falls, and each token is judged once."""

import math
from unittest import mock

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch.nn import functional as F

from helpers import corpus, train
from helpers.corpus import bits_per_byte
from helpers.model import Llama
from helpers.text import encode, excerpt
from helpers.train import learning_rate
from tests.support.models import SMALL


def test_learning_rate_rises_to_its_peak_and_falls_to_a_tenth():
    rates = [learning_rate(step, 1000, 3.0) for step in range(1901)]
    assert rates[0] == pytest.approx(0.03)
    assert max(rates) == rates[100] == pytest.approx(3.0)
    assert rates[1000] == rates[1900] == pytest.approx(0.3)  # it does not rise again
    assert rates[:101] == sorted(rates[:101])
    assert rates[100:] == sorted(rates[100:], reverse=True)


def test_matrices_decay_and_gains_do_not():
    model = Llama(SMALL)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for weight in model.parameters():
        weight.register_hook(torch.zeros_like)  # nothing is learned
    train.train(model, lambda: torch.arange(99), steps=2, warm_up=0, peak=0.1, weight_decay=1.0)
    assert not model.training
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name]) == (weight.ndim == 1), name


def test_the_optimizer_forgets_old_squares_as_fast_as_llamas_does():
    """AdamW with beta2 0.95, written out here: with 0.999 the second step already ends elsewhere."""
    model = Llama(SMALL)
    before, gradients = model.lm_head.weight.detach().clone(), []
    model.lm_head.weight.register_hook(lambda gradient: gradients.append(gradient.clone()))
    with mock.patch.object(train, "clip_gradients"):  # they stay as they are seen here
        train.train(model, lambda: torch.arange(99), steps=3, warm_up=0, peak=0.1, weight_decay=0.0)
    x, mean, square = before, torch.zeros_like(before), torch.zeros_like(before)
    for step, gradient in enumerate(gradients, 1):
        mean, square = 0.9 * mean + 0.1 * gradient, 0.95 * square + 0.05 * gradient**2
        change = (mean / (1 - 0.9**step)) / ((square / (1 - 0.95**step)).sqrt() + 1e-8)
        x = x - learning_rate(step - 1, 3, 0.1, 0) * change
    torch.testing.assert_close(model.lm_head.weight.detach(), x, rtol=1e-3, atol=1e-4)


def test_gradients_are_shortened_to_1_before_the_step_uses_them():
    model, tokens = Llama(SMALL), torch.arange(20).view(2, 10)
    for weight in model.parameters():
        weight.register_hook(lambda gradient: 1000 * gradient)
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    train.training_step(model, torch.optim.SGD(model.parameters(), lr=1.0), tokens[:, :-1], tokens[:, 1:])
    moved = (torch.nn.utils.parameters_to_vector(model.parameters()) - before).norm().item()
    assert moved == pytest.approx(1, rel=1e-3)


def test_a_block_of_autocast_around_the_training_computes_with_the_weights_of_each_step(tokenizer):
    """Its cache keeps 16-bit matrices: those of the first step, and, after a look without gradients, untrained ones."""
    found = []
    for cached in (False, True):
        torch.manual_seed(0)
        model = Llama(SMALL)
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
            look = lambda *_, model=model: bits_per_byte(model, tokenizer, excerpt()[:300])  # noqa: E731
            losses = train.train(model, lambda: torch.arange(99), steps=12, warm_up=0, report=look)
            found.append((losses, look()))
    assert found[0] == found[1]
    assert losses[-1] < losses[0] - 0.1


def test_every_token_is_judged_once_as_if_windows_were_read_one_by_one(tokenizer, monkeypatch):
    model, half = Llama(SMALL), SMALL.max_seq_len // 2
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)  # so that a shifted or forgotten token shows
    tokens, losses = encode(tokenizer, excerpt()), [math.log(300)]
    for at in range(1, len(tokens)):  # read from the start of the window that judges it
        start = max(0, (at - 1) // half - 1) * half
        logits = model(tokens[None, start:at], last_only=True)[0]
        losses.append(F.cross_entropy(logits, tokens[at : at + 1]).item())
    for n_tokens in (2, 17, 24, 25, 41, len(tokens)):  # one or some windows, whole or with a rest
        some = tokenizer.decode(tokens[:n_tokens].tolist())
        bits = sum(losses[:n_tokens]) / math.log(2)
        for most in (1, 3 * 16 * 300, 2**22):  # windows at a time: 1, 3, all
            monkeypatch.setattr(corpus, "MAX_LOGITS", most)
            assert bits_per_byte(model, tokenizer, some) == pytest.approx(bits / len(some.encode()))


@pytest.mark.parametrize("template", ["<|end_of_text|> $A", "<|end_of_text|> $A <|end_of_text|>"])
def test_what_the_tokenizer_puts_around_a_text_is_read_and_not_judged(template, tokenizer):
    """A uniform model needs the same bits for each token of the text's own, as where no BOS stands in front (above)."""
    own = Tokenizer.from_str(tokenizer.to_str())
    own.post_processor = TemplateProcessing(single=template, special_tokens=[("<|end_of_text|>", 0)])
    model, text = Llama(SMALL), excerpt()[:400]
    for some in ("a", text[:9], text):  # one window or many
        n = len(tokenizer.encode(some).ids)
        model.lm_head.weight = torch.nn.Parameter(torch.zeros(300, 16))
        assert bits_per_byte(model, own, some) == pytest.approx(n * math.log2(300) / len(some.encode()))
    torch.nn.init.normal_(model.lm_head.weight)
    tokens = torch.tensor(own.encode(text[:9]).ids)
    judged = tokens[1 : 1 + len(tokenizer.encode(text[:9]).ids)]  # all of the text's own, each after the BOS
    nats = F.cross_entropy(model(tokens[None])[0, : len(judged)], judged, reduction="sum").item()
    assert bits_per_byte(model, own, text[:9]) == pytest.approx(nats / math.log(2) / 9)
