"""The seven slips of notebook 05, and whether the hints of its exercise 4 say the truth about them."""

import copy

import torch

from checks.full_model import LETTERS, METHODS, SLIPS, TRY, _with_slip, models_to_examine, pair_with_slip, small_llama
from helpers.model import RMSNorm

TOKENS = torch.arange(40)[None]


def those_that_show(change, tokens):
    """The slips that move the logits of these tokens, after the same change of the reference and of every model."""
    reference, _ = models_to_examine()
    slipped = {slip: _with_slip(reference, slip) for slip in SLIPS}
    for model in (reference, *slipped.values()):
        change(model)
    return {slip for slip, model in slipped.items() if (model(tokens) - reference(tokens)).abs().max() > 1e-4}


def every_gain_1(model):
    for module in norms(model):
        module.weight.fill_(1)


def every_eps_0(model):
    for module in norms(model):
        module.eps = 0.0


def norms(model):
    return [module for module in model.modules() if isinstance(module, RMSNorm)]


def gate_is_up(model):
    for block in model.layers:
        block.feed_forward.up_proj.weight.copy_(block.feed_forward.gate_proj.weight)


def turned_by(speed):
    return lambda model: model.inv_freq.fill_(speed)


def test_a_slip_does_not_show_where_what_it_touches_cannot_matter():
    on_one_token = {"gain ignored", "wrong eps", "gate and up swapped"}
    assert those_that_show(lambda model: None, TOKENS[:, :1]) == on_one_token
    assert those_that_show(every_gain_1, TOKENS[:, :1]) == on_one_token - {"gain ignored"}
    assert those_that_show(every_eps_0, TOKENS[:, :1]) == on_one_token - {"wrong eps"}
    assert those_that_show(gate_is_up, TOKENS[:, :1]) == on_one_token - {"gate and up swapped"}
    assert those_that_show(turned_by(0), TOKENS) == set(SLIPS) - {"wrong base", "neighbours paired"}
    assert those_that_show(turned_by(1), TOKENS) == set(SLIPS) - {"wrong base"}


def test_only_a_wrong_mask_lets_the_last_token_move_earlier_logits():
    _, models = models_to_examine()
    other_end = TOKENS.clone()
    other_end[0, -1] = 63
    moved = {letter: (model(other_end) - model(TOKENS))[0, :-1].abs().max() for letter, model in models.items()}
    assert {LETTERS[letter] for letter in models if moved[letter] > 1e-3} == {"mask shows the next token"}


def test_each_model_has_the_slip_of_its_letter_and_copies_keep_it():
    reference, models = models_to_examine()
    for letter, model in models.items():
        assert torch.equal(model(TOKENS), _with_slip(reference, LETTERS[letter])(TOKENS))
        assert torch.equal(copy.deepcopy(model)(TOKENS), model(TOKENS))
        assert set(TRY[letter]) == set(SLIPS) == set(METHODS)


def test_a_new_model_shows_one_of_the_seven_slips_and_large_weights_with_a_strict_limit_show_all():
    def relative_gap(slip, weights):
        right, slipped = pair_with_slip(slip, weights)
        expected = right(TOKENS[:, :8])
        return (slipped(TOKENS[:, :8]) - expected).abs().max() / expected.abs().max()

    assert relative_gap(None, "large") == 0
    assert [slip for slip in SLIPS if relative_gap(slip, "new") > 0.05] == ["mask shows the next token"]
    assert [slip for slip in SLIPS if relative_gap(slip, "new") <= 1e-5] == ["gain ignored"]
    assert [slip for slip in SLIPS if relative_gap(slip, "large") <= 0.05] == ["wrong eps"]
    assert all(relative_gap(slip, "large") > 1e-5 for slip in SLIPS)
    assert small_llama("new").final_norm.weight.eq(1).all()
