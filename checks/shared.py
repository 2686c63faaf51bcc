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
        in_train = all(one.training for one in self.modules())
        self.calls.append(ModelCall(tokens.detach().clone(), cache is not None, in_train))
        return super().forward(tokens, cache, *rest, **named)


def require_form(answer, like, exercise, hint=""):
    """Raise unless an answer is a plain tensor of the shape and dtype of another."""
    try:
        compare(torch.zeros_like(answer) if isinstance(answer, torch.Tensor) else answer, like * 0, exercise, ())
    except Wrong as problem:
        raise Wrong(problem.message, problem.hint or hint) from None


HOOK_LEFT = "a hook is still on a model, or lost.", "Keep what register_forward_hook gives and .remove() it at the end."


def snapshot(model):
    """What a program that only looks at a model leaves as it was."""
    tensors, own = dict([*model.named_parameters(), *model.named_buffers()]), [*map(vars, model.modules())]
    tensors |= {f"{i} {name}": x for i, one in enumerate(own) for name, x in one.items() if torch.is_tensor(x)}
    hooks = [len(one["_forward_hooks"]) + len(one["_forward_pre_hooks"]) + len(one["_backward_hooks"]) for one in own]
    modes = [(one["training"], sorted(one)) for one in own], [one.requires_grad for one in tensors.values()]
    return hooks, modes, {name: one.detach().clone() for name, one in tensors.items()}


def require_unchanged(model, before):
    """Raise unless a model is as it was: its hooks, its modes and its numbers."""
    hooks, modes, tensors = snapshot(model)
    if hooks != before[0]:
        raise Wrong(*HOOK_LEFT)
    if modes != before[1]:
        said = "a model is left in another mode: train or eval, requires_grad, another attribute or forward."
        raise Wrong(said, "Look at a model, and leave it as it was. Each module and each weight has a mode of its own.")
    if any(not torch.allclose(one, tensors[name], 0, 0, equal_nan=True) for name, one in before[2].items()):
        raise Wrong("a model's weights are changed.", "Look at a model, and leave it as it was.")
