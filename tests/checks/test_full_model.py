"""The slips of notebook 05, and whether the hints of its exercise 4 say the truth about them."""

import copy

import torch

from checks.full_model import (
    CALL_SLIPS,
    LETTERS,
    METHODS,
    SLIPS,
    TRY,
    _with_slip,
    models_to_examine,
    pair_with_slip,
    properties,
    small_llama,
)
from helpers.model import RMSNorm

TOKENS = torch.arange(40)[None]


def those_that_show(change, tokens):
    """The slips that move the logits of these tokens, after the same change of the reference and of every model."""
    reference, _ = models_to_examine()
    slipped = {slip: _with_slip(reference, slip) for slip in SLIPS}
    for model in (reference, *slipped.values()):
        change(model)
    return {slip for slip, model in slipped.items() if (model(tokens) - reference(tokens)).abs().max() > 1e-4}


def norms(model):
    return [module for module in model.modules() if isinstance(module, RMSNorm)]


def gate_is_up(model):
    for block in model.layers:
        block.feed_forward.up_proj.weight.copy_(block.feed_forward.gate_proj.weight)


def turned_by(speed):
    return lambda model: model.inv_freq.fill_(speed)


def test_a_slip_does_not_show_where_what_it_touches_cannot_matter():
    every_gain_1 = lambda model: [norm.weight.fill_(1) for norm in norms(model)]  # noqa: E731
    every_eps_0 = lambda model: [setattr(norm, "eps", 0.0) for norm in norms(model)]  # noqa: E731
    on_one_token = {"gain ignored", "wrong eps", "gate and up swapped"}
    assert those_that_show(lambda model: None, TOKENS[:, :1]) == on_one_token
    assert those_that_show(every_gain_1, TOKENS[:, :1]) == on_one_token - {"gain ignored"}
    assert those_that_show(every_eps_0, TOKENS[:, :1]) == on_one_token - {"wrong eps"}
    assert those_that_show(gate_is_up, TOKENS[:, :1]) == on_one_token - {"gate and up swapped"}
    in_40_tokens = set(SLIPS) - {"positions in bfloat16"}
    assert those_that_show(turned_by(0), TOKENS) == in_40_tokens - {"wrong base", "neighbours paired"}
    assert those_that_show(turned_by(1), TOKENS) == in_40_tokens - {"wrong base"}


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


def relative_gap(slip, weights, n_tokens):
    right, slipped = pair_with_slip(slip, weights)
    tokens = torch.arange(n_tokens)[None] % 64
    return ((slipped(tokens) - right(tokens)).abs().max() / right(tokens).abs().max()).item()


def test_large_weights_a_strict_limit_and_300_tokens_are_needed_to_show_all_eight_slips():
    short = set(SLIPS) - {"positions in bfloat16"}
    assert relative_gap(None, "large", 300) == 0
    assert [slip for slip in SLIPS if relative_gap(slip, "new", 8) > 0.05] == ["mask shows the next token"]
    assert {slip for slip in SLIPS if relative_gap(slip, "new", 8) > 1e-5} == short - {"gain ignored"}
    assert [slip for slip in SLIPS if relative_gap(slip, "large", 300) <= 0.05] == ["wrong eps"]
    assert {slip for slip in SLIPS if relative_gap(slip, "large", 256) > 1e-5} == short
    assert all(relative_gap(slip, "large", 300) > 1e-5 for slip in SLIPS)
    assert small_llama("new").final_norm.weight.eq(1).all()


def test_parity_and_properties_see_different_slips():
    found = {slip: not all(properties(pair_with_slip(slip, "large")[1])) for slip in (*SLIPS, *CALL_SLIPS)}
    assert [slip for slip in SLIPS if found[slip]] == ["mask shows the next token"]
    assert all(found[slip] for slip in CALL_SLIPS)
    assert [slip for slip in CALL_SLIPS if relative_gap(slip, "large", 300) > 1e-5] == ["norm over the tokens"]
