"""What the checks of notebooks 06 and 07 share: numbers that stand for something, and a model that notes its calls."""

from collections import namedtuple

import torch

from checks.base import Wrong
from checks.compare import compare
from helpers.model import Llama

ModelCall = namedtuple("ModelCall", "tokens has_cache training")


class Named(int):
    """A number that stands in a case for what it makes, and is shown in these words."""

    def __new__(cls, number, words):
        self = super().__new__(cls, number)
        self.words = words
        return self

    def __repr__(self):
        return self.words


class RecordedLlama(Llama):
    """A model that notes its calls."""

    def __init__(self, config):
        super().__init__(config)
        self.calls = []

    def forward(self, tokens, cache=None, *rest, **named):
        self.calls.append(ModelCall(tokens.detach().clone(), cache is not None, self.training))
        return super().forward(tokens, cache, *rest, **named)


def require_form(answer, like, exercise, hint=""):
    """Raise unless an answer is a plain tensor of the shape and dtype of another."""
    try:
        compare(torch.zeros_like(answer) if isinstance(answer, torch.Tensor) else answer, like * 0, exercise, ())
    except Wrong as problem:
        raise Wrong(problem.message, problem.hint or hint) from None
