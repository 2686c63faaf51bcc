"""A trained LLaMA on the operating table: replace, remove or swap a part, measure what it costs, put it back.

One number proves little. Measure beside it: nothing changed, everything removed, and another part, drawn at random.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

from helpers.assets import ASSETS
from helpers.model import Llama, attention_weights, causal_visible, repeat_kv
from helpers.text import encode, load_tokenizer
from helpers.validate import require_model, require_plain


@functools.cache
def held_out_tokens() -> torch.Tensor:
    """Token ids, (N,) int64, of text that tiny-llama was not trained on."""
    return encode(load_tokenizer(), (ASSETS / "held_out.txt").read_text(encoding="utf-8"))


def held_out_windows() -> torch.Tensor:
    """Token ids of the held-out text, (16, 257) int64, the same on every machine."""
    tokens = held_out_tokens()
    return tokens.unfold(0, 257, len(tokens) // 16)[:16]  # evenly spread


@torch.no_grad()
def held_out_loss(model: nn.Module) -> float:
    """Mean loss [nat/token] on the held-out windows of a model: tokens (B, T) -> logits (B, T, 1024)."""
    require_model(model)
    windows = held_out_windows().to(next(model.parameters()).device)
    logits = model(windows[:, :-1])
    if logits.shape[-1] != 1024:
        raise ValueError(f"the model has {logits.shape[-1]} tokens: pass one of tiny-llama's tokenizer, with 1,024.")
    return F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten()).item()


@torch.no_grad()
def attention_by_layer(model: Llama, tokens: torch.Tensor) -> torch.Tensor:
    """Attention weights, mean over the rows of tokens (B, T): (n_layers, H, T, T)."""
    require_model(model)
    require_plain(model, "attention_by_layer", "read each layer's attention by outputs_of")
    cos, sin, _ = model.rotation_and_mask(tokens.shape[1], device=tokens.device)
    visible = causal_visible(tokens.shape[1], tokens.shape[1], tokens.device)
    x, weights = model.tok_embeddings(tokens), []
    for block in model.layers:
        q, k, _ = block.attention.rotated_qkv(block.attention_norm(x), cos, sin)
        weights.append(attention_weights(q, repeat_kv(k, block.attention.n_rep), visible).mean(dim=0).cpu())
        x = block(x, cos, sin)
    return torch.stack(weights)


def outputs_of(model: nn.Module, names: Iterable[str], pieces: Iterable[torch.Tensor], *cache) -> dict:
    """{part: what it returns, (B, T, ...)} of a model that reads a text in pieces, in the order in which parts end.

    Of a part that returns several things the first counts.
    """
    outputs = {}
    with _hooks(model, list(names), lambda name, output: outputs.setdefault(name, []).append(output)):
        for piece in pieces:
            model(piece, *cache)
    first = {name: [y if isinstance(y, torch.Tensor) else y[0] for y in some] for name, some in outputs.items()}
    return {name: torch.cat(pieces, dim=1) for name, pieces in first.items()}


@contextmanager
def replaced(part: nn.Module | type, forward: Callable) -> Iterator[None]:
    """Inside the `with`, a module, or every module of a class, computes forward(module, *arguments).

    Does the new one need the old? Name it before: `norm = RMSNorm.forward`. A module whose class inherits from the
    given one but has a forward of its own, as in a prepared model, raises a ValueError: it would stay as it is.
    """

    def refuse(module, *_, **__):
        raise ValueError(f"a {type(module).__name__} has a forward of its own: pass the module, not {part.__name__}.")

    if isinstance(part, type):
        new, kinds = {part: forward}, part.__subclasses__()
        for kind in kinds:
            kinds += kind.__subclasses__()  # the loop goes on over these
            new |= {kind: refuse} if "forward" in vars(kind) else {}
    else:
        new = {part: functools.partial(forward, part)}
    with ExitStack() as stack:
        for owner, own in new.items():
            stack.enter_context(mock.patch.object(owner, "forward", own))
        yield


@contextmanager
def without_heads(model: Llama, heads: Iterable[tuple[int, int]]) -> Iterator[None]:
    """Inside the `with`, these (layer, head) write zeros: ablation."""
    require_model(model)
    n_layers, n_heads, h = model.config.n_layers, model.config.n_heads, model.config.head_dim
    cut = torch.zeros(n_layers, n_heads, dtype=torch.bool)
    for layer, head in heads:
        if layer not in range(n_layers) or head not in range(n_heads):
            raise ValueError(f"no head {(layer, head)}: the model has {n_layers} layers of {n_heads} heads, from 0.")
        cut[layer, head] = True
    columns = {f"layers.{i}.attention.o_proj": row.repeat_interleave(h) for i, row in enumerate(cut) if row.any()}
    with _hooks(model, columns, lambda name, mixed: mixed.masked_fill(columns[name].to(mixed.device), 0), before=True):
        yield


@contextmanager
def patched(model: nn.Module, clean: torch.Tensor, places: Iterable[tuple[str, int | slice]]) -> Iterator[None]:
    """Inside the `with`, modules return at some positions what they return for `clean` (B, T): activation patching.

    Places are pairs of a name in `model.named_modules()` and a position or slice of them: ("layers.2.attention", 5).
    """
    places, kept = list(places), {}

    def swap(name, output):
        if output.shape != kept[name].shape:
            raise ValueError(f"{name} gives {tuple(output.shape)}, for clean {tuple(kept[name].shape)}: use one shape.")
        output = output.clone()
        for position in [position for place, position in places if place == name]:
            output[:, position] = kept[name][:, position]
        return output

    with _hooks(model, dict(places), kept.__setitem__), torch.no_grad():
        model(clean)
    for name, position in places:
        n = kept[name].shape[1]
        if position not in range(-n, n) if isinstance(position, int) else not len(torch.arange(n)[position]):
            raise ValueError(f"{name} has no position {position}: clean has {n} tokens, numbered from 0.")
    with _hooks(model, dict(places), swap):
        yield


@contextmanager
def _hooks(model, names, change, before=False):
    """A module's input (before) or output becomes change(name, tensor); None leaves it as it is."""
    require_model(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    if unknown := [name for name in names if name not in modules]:
        raise ValueError(f"the model has no module {unknown[0]!r}: take a name of model.named_modules().")
    with ExitStack() as stack:
        for name in names:
            add = modules[name].register_forward_pre_hook if before else modules[name].register_forward_hook
            stack.callback(add(lambda _, given, *output, name=name: change(name, *(output or given))).remove)
        yield
