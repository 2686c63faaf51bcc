"""The models to examine in notebook 05 show the slips that their letters stand for, and no others."""

import torch

from checks.full_model import LETTERS, SLIPS, models_to_examine


def test_each_model_shows_what_the_hints_say_of_its_slip():
    reference, models = models_to_examine()
    tokens = torch.arange(40)[None]
    gap = {letter: (model(tokens) - reference(tokens)).abs().amax(-1)[0] for letter, model in models.items()}
    alone = {letter: (model(tokens[:, :1]) - reference(tokens[:, :1])).abs().max() for letter, model in models.items()}
    other_end = tokens.clone()
    other_end[0, -1] = 63
    moved = {letter: (model(other_end) - model(tokens))[0, :-1].abs().max() for letter, model in models.items()}
    assert {letter for letter in models if moved[letter] > 1e-3} == {"A"}  # the last token is seen before it comes
    assert {letter for letter in models if alone[letter] > 1e-3} == {"B"}
    assert gap["C"][0] < 1e-5 < 1e-3 < gap["C"][1:5].mean() < gap["C"][-5:].mean()  # it grows with the distance
    assert set(LETTERS.values()) <= set(SLIPS)
