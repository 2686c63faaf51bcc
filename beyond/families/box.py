"""A model of transformers as a box: what enters and leaves its parts is replaced, and the rest is compared."""

import functools
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

FEW = 5  # tokens, so few that all are in any window
EQUAL = 1e-3  # of the largest number
NORM = re.compile("norm|ln_")
NO_BRANCH = re.compile("norm|ln_|drop|act|_hc$|hyper|per_layer|mamba|conv|linear_att")


class Lens(TorchFunctionMode):
    """Keys and values (B, H, T, h) and weights (B, H, T, T) of attention, caught where PyTorch computes them."""

    def __init__(self, n_texts: int, n_tokens: int):
        super().__init__()
        self.square, self.sink = (n_tokens, n_tokens), (n_tokens, n_tokens + 1)
        self.n_texts, self.layer, self.key, self.seen = n_texts, None, None, defaultdict(dict)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out, name = func(*args, **kwargs or {}), getattr(func, "__name__", "")
        if self.layer is None or not isinstance(out, torch.Tensor) or out.ndim < 3:
            return out
        given = [one for one in (*args, *(kwargs or {}).values()) if isinstance(one, torch.Tensor)]
        if re.search("mm|matmul", name):
            if out.shape[-2:] == self.square and given[-1].shape[-1] == self.square[0]:
                self.key = given[-1].mT
            elif given[0].shape[-2:] == self.square:
                self._note("values", given[-1])
        if "softmax" in name and out.shape[-2:] in (self.square, self.sink):
            self._note("keys", self.key)
            self._note("weights", out[..., : self.square[0]])
        return out

    def _note(self, name, y):
        self.seen[name][self.layer] = y.reshape(self.n_texts, -1, *y.shape[-2:])


class Box:
    """A causal model of transformers, with a hand on what enters and leaves each layer, its attention and feed-forward.

    Args:
        model: in plain steps ("eager"), of any family whose layers have a part named "…att…". Layers without such
            a part, or whose attention computes no weights, are left out: `numbers` are those of the others.
    """

    def __init__(self, model: nn.Module):
        self.model, self.dim = model.cpu().requires_grad_(False), model.config.get_text_config().hidden_size
        self.takes_places = "position_ids" in inspect.signature(model.forward).parameters
        self.generator = torch.Generator().manual_seed(0)
        lists = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part)]
        has = [one for one in lists if any(map(self._attention, one))]
        layers = [*max(has or lists, key=len)]
        self.n_layers, of = len(layers), {n: self._attention(layer) for n, layer in enumerate(layers)}
        self._open(layers, of, [n for n in of if of[n] is not None])
        seen = self.run(self.random(1, FEW)) if self.numbers else {"found": []}
        self._open(layers, of, seen["found"])
        came = [*seen.get("layer in", [])[:1], *seen.get("attention in", [])[:1]]
        self.one_stream = all(y.shape[2:] == (self.dim,) for y in came)  # DeepSeek-V4 has four, Zamba's reads two

    def _open(self, layers, of, numbers):
        self.numbers, self.layers, self.attentions = numbers, [layers[n] for n in numbers], [of[n] for n in numbers]
        self.branches = [  # the parts of a feed-forward: one, OPT's fc1 and fc2, or experts and one that is shared
            [part for name, part in layer.named_children()
             if not NO_BRANCH.search(name) and attention not in part.modules() and [*part.parameters()]]
            for layer, attention in zip(self.layers, self.attentions, strict=True)
        ]  # fmt: skip
        head = self.model.get_output_embeddings()
        self.parts = [("head", head, head)]  # name, its first, its last
        for layer, attention, branch in zip(self.layers, self.attentions, self.branches, strict=True):
            several = branch and isinstance(branch[0], nn.Linear)
            ends = [(branch[0], branch[-1])] if several else [(one, one) for one in branch]
            of = [("layer", layer, layer), ("attention", attention, self._inner(attention))]
            of += [("feed_forward", first, self._inner(last)) for first, last in ends]
            self.parts += [one for one in of if all(one[1] is not other for _, other, _ in self.parts)]

    @staticmethod
    def _attention(layer):
        named = [(name.rpartition(".")[2], part) for name, part in layer.named_modules()]
        named += [(type(part).__name__.lower(), part) for name, part in named[1:] if not NO_BRANCH.search(name)]
        return next((part for name, part in named if "att" in name and not NO_BRANCH.search(name)), None)

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
        tokens = torch.full(x.shape[:2], 3) if tokens is None else tokens
        lens, seen, now = Lens(*tokens.shape), defaultdict(lambda: defaultdict(list)), {}

        def begins(number, *given):  # of a loop the last time counts
            now["layer"] = number
            for of in seen.values():
                of.pop(number, None)

        def before(name, module, args, kwargs):
            y = came = args[0] if args else kwargs["hidden_states"]
            if x is not None and name == part:  # as wide as what came: in Zamba two streams
                y = x.repeat(1, 1, came.shape[-1] // self.dim)
            seen[f"{name} in"][now.get("layer")].append(y)
            lens.layer = now.get("layer") if name == "attention" else None
            if args:
                return tuple(y if one is came else one for one in args), kwargs  # CTRL's are three
            return args, kwargs | {"hidden_states": y}

        def behind(name, module, args, out):
            lens.layer = None if name == "attention" else lens.layer
            first, *rest = out if isinstance(out, (tuple, list)) else (out,)
            y = leave[name](first) if leave and name in leave else first
            seen[f"{name} out"][now.get("layer")].append(y.clone())  # Falcon adds to it in place
            return type(out)((y, *rest)) if isinstance(out, (tuple, list)) else y

        with ExitStack() as hooks:
            for number, layer in zip(self.numbers, self.layers, strict=True):  # several may share one attention
                hooks.callback(layer.register_forward_pre_hook(functools.partial(begins, number)).remove)
            for name, first, last in self.parts:
                hook = functools.partial(before, name)
                hooks.callback(first.register_forward_pre_hook(hook, with_kwargs=True).remove)
                hooks.callback(last.register_forward_hook(functools.partial(behind, name)).remove)
            places = torch.arange(tokens.shape[1]) if places is None else places
            given = {"position_ids": places.expand(tokens.shape)} if self.takes_places else {}
            with lens:
                out = self.model(tokens, use_cache=True, **given)
        kept = getattr(getattr(out, "past_key_values", None), "layers", [])
        kept = [kept[n] if n < len(kept) else None for n in self.numbers]
        lists = {name: [(sum if name == "feed_forward out" else next)(iter(of[n])) for n in of]
                 for name, of in seen.items()}  # fmt: skip
        lists |= {name: [*of.values()] for name, of in lens.seen.items()}
        return lists | {"logits": [out.logits], "found": [*lens.seen["weights"]], "kept": kept}


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
