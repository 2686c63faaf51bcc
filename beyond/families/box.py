"""A model of transformers as a box: what enters and leaves its parts is replaced, and the rest is compared."""

import functools
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

FEW = 5  # tokens, so few that all are in any window
EQUAL = 1e-3  # of the largest number
NORM, NO_BRANCH = re.compile("norm|ln_"), re.compile("norm|ln_|drop|act")


class Box:
    """A causal model of transformers, with a hand on what enters and leaves each layer, its attention and feed-forward.

    Args:
        model: in plain steps ("eager"), with a cache of keys; of any family whose layers have a part named "…att…".
    """

    def __init__(self, model: nn.Module):
        self.model, self.dim = model.cpu().requires_grad_(False), model.config.hidden_size
        self.takes_places = "position_ids" in inspect.signature(model.forward).parameters
        self.generator = torch.Generator().manual_seed(0)
        lists = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part)]
        self.layers = max((one for one in lists if self._attention(one[0])), key=len)
        self.attentions = [self._attention(layer) for layer in self.layers]
        self.branches = [  # the parts of a feed-forward: one, OPT's fc1 and fc2, or experts and one that is shared
            [part for name, part in layer.named_children()
             if not NO_BRANCH.search(name) and attention not in part.modules() and [*part.parameters()]]
            for layer, attention in zip(self.layers, self.attentions, strict=True)
        ]  # fmt: skip
        self.parts = [
            ("head", model.get_output_embeddings(), model.get_output_embeddings())
        ]  # name, its first, its last
        for layer, attention, branch in zip(self.layers, self.attentions, self.branches, strict=True):
            ends = [(branch[0], branch[-1])] if isinstance(branch[0], nn.Linear) else [(one, one) for one in branch]
            self.parts += [("layer", layer, layer), ("attention", attention, self._inner(attention))]
            self.parts += [("feed_forward", first, self._inner(last)) for first, last in ends]

    @staticmethod
    def _attention(layer):
        names = ((name.rpartition(".")[2], part) for name, part in layer.named_modules())
        return next((part for name, part in names if "att" in name and not NO_BRANCH.search(name)), None)

    @staticmethod
    def _inner(part):  # BLOOM's and MPT's add the stream themselves
        adds = "residual" in inspect.signature(part.forward).parameters
        return [one for one in part.modules() if isinstance(one, nn.Linear)][-1] if adds else part

    def random(self, *shape: int) -> torch.Tensor:
        """Vectors as wide as the stream, (*shape, D)."""
        return torch.randn(*shape, self.dim, generator=self.generator)

    @torch.no_grad()
    def run(self, x=None, part="attention", leave=None, tokens=None, places=None) -> dict:
        """{name: a list with one tensor for each layer}: what enters and leaves, keys, values and weights.

        Args:
            x: (B, T, D), in place of what enters a part: "layer", "attention", "feed_forward" or "head".
            leave: {part: a function of what leaves it}.
            tokens: (B, T); if none, all tokens are the same one.
            places: (T,), positions other than 0 to T - 1.
        """
        from transformers import DynamicCache

        seen, cache = defaultdict(list), DynamicCache()

        def before(name, module, args, kwargs):
            y = x if x is not None and name == part else args[0] if args else kwargs["hidden_states"]
            seen[f"{name} in"].append(y)
            if args:
                return tuple(y if one is args[0] else one for one in args), kwargs  # CTRL's are three
            return args, kwargs | {"hidden_states": y}

        def behind(name, module, args, out):
            first, *rest = out if isinstance(out, tuple) else (out,)
            y = leave[name](first) if leave and name in leave else first
            seen[f"{name} out"].append(y)
            return (y, *rest) if isinstance(out, tuple) else y

        def weights(module, args, out):
            seen["weights"] += [one for one in out[1:] if torch.is_tensor(one) and one.ndim == 4][:1]

        with ExitStack() as hooks:
            for attention in self.attentions:
                hooks.callback(attention.register_forward_hook(weights).remove)
            for name, first, last in self.parts:
                hook = functools.partial(before, name)
                hooks.callback(first.register_forward_pre_hook(hook, with_kwargs=True).remove)
                hooks.callback(last.register_forward_hook(functools.partial(behind, name)).remove)
            tokens = torch.full(x.shape[:2], 3) if tokens is None else tokens
            places = torch.arange(tokens.shape[1]) if places is None else places
            given = {"position_ids": places.expand(tokens.shape)} if self.takes_places else {}
            out = self.model(tokens, attention_mask=torch.ones_like(tokens), past_key_values=cache, use_cache=True,
                             output_attentions=True, **given)  # fmt: skip
        for name, join in (("feed_forward in", lambda some: some[0]), ("feed_forward out", sum)):
            several = len(seen[name]) // len(self.layers)
            seen[name] = [join(seen[name][i : i + several]) for i in range(0, len(seen[name]), several)]
        seen |= {"keys": [one.keys for one in cache.layers], "values": [one.values for one in cache.layers]}
        return seen | {"logits": [out.logits]}


@contextmanager
def changed(weights: Iterable[torch.Tensor], change: Callable):
    """Inside the `with`, `change(weight)` has changed each of these weights in place."""
    saved = [(weight, weight.clone()) for weight in weights]
    try:
        for weight, _ in saved:
            change(weight)
        yield
    finally:
        for weight, before in saved:
            weight.copy_(before)


def off(first, second) -> float:
    """The largest difference, as a share of the largest number of the second."""
    return ((first - second).abs().max() / second.abs().max().clamp(min=1e-9)).item()


def of_layers(measure: Callable, *seen: list) -> list:
    """measure(…) of the first, the second … layer's tensors."""
    return [measure(*one) for one in zip(*seen, strict=True)]


def largest(y) -> float:
    """The largest number."""
    return y.abs().max().item()


def times(first, second) -> float | None:
    """How many times the second the first is; None if it is something else."""
    factor = (first * second).sum() / (second**2).sum()
    return factor.item() if off(first, factor * second) < 10 * EQUAL else None


def norm_weights(parts: Iterable[nn.Module]) -> list[torch.Tensor]:
    """The weights and biases of the norms in some parts."""
    named = [pair for part in parts for pair in part.named_parameters()]
    return [weight for name, weight in named if NORM.search(".".join(name.split(".")[-2:]))]
