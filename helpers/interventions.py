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
from helpers.model import GroupedQueryAttention, Llama, attention_weights, causal_visible, repeat_kv
from helpers.text import encode, load_tokenizer
from helpers.validate import require_model

PLAIN = GroupedQueryAttention.attend


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
    """Attention weights of a LLaMA or a relative, mean over the rows of tokens (B, T): (n_layers, H, T, T).

    They are zeros in a block whose attention is `replaced` by something that never calls `attend`.
    """
    weights, size = {}, tokens.shape[1]

    def keep(own, attention, q, k, v, visible):
        weights[attention] = weights_of(own, attention, q, k, v, visible).mean(dim=0).cpu()
        return own(attention, q, k, v, visible)

    with attending(model, keep):
        model(tokens)
    none = torch.zeros(model.config.n_heads, size, size)
    return torch.stack([weights.get(block.attention, none) for block in model.layers])


@contextmanager
def attending(model: Llama, attend: Callable) -> Iterator[None]:
    """Inside the `with`, attention mixes its values as attend(own, attention, q, k, v, visible) does, block by block.

    Own is the `attend` that this replaces, of the module `attention`: q (B, H, T, h), k and v (B, K, S, h), visible
    (T, S) bool or None -> (B, H, T, h). What an edit does to the mixture afterwards, such as a gate, it still does.

    Raises:
        ValueError: if the model's blocks have no such attention, as in a prepared model or one of transformers.
    """
    require_model(model)
    parts = [getattr(block, "attention", None) for block in getattr(model, "layers", ())]
    if not parts or not all(isinstance(part, GroupedQueryAttention) for part in parts):
        raise ValueError(f"a {type(model).__name__} has no blocks with the course's attention: pass a Llama, such as "
                         "load_checkpoint(folder) gives.")  # fmt: skip
    with ExitStack() as stack:
        for kind in {_class_that_mixes(part) for part in parts}:
            stack.enter_context(mock.patch.object(kind, "attend", _given_own(attend, kind.attend, {*parts})))
        yield


def _given_own(attend, own, parts):  # a class is patched, and its modules in other models stay as they are
    return lambda attention, *given: attend(own, attention, *given) if attention in parts else own(attention, *given)


def _class_that_mixes(attention):
    # The class whose `attend` mixes the values itself; one that calls super(), and so closes over __class__, does not.
    return next(kind for kind in type(attention).__mro__
                if "attend" in vars(kind) and "__class__" not in kind.attend.__code__.co_freevars)  # fmt: skip


def mixes_plainly(attention: nn.Module) -> bool:
    """Whether softmax over scaled products alone gives the weights: no cap, sink or slope of an edit."""
    return _class_that_mixes(attention).attend is PLAIN


def weights_of(own: Callable, attention: nn.Module, q, k, v, visible) -> torch.Tensor:
    """The attention weights (B, H, T, S) by which `own`, of `attending`, mixes the values v (B, K, S, h).

    Raises:
        ValueError: if what it returns is no weighted sum of the values, so that there are no weights to show.
    """
    visible = causal_visible(q.shape[2], k.shape[2], q.device) if visible is None else visible
    if own is PLAIN:
        return attention_weights(q, repeat_kv(k, attention.n_rep), visible)
    one_hot = torch.eye(k.shape[2], dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
    weights, mixed = own(attention, q, k, one_hot, visible), own(attention, q, k, v, visible)
    gap = (weights @ repeat_kv(v, attention.n_rep) - mixed).nan_to_num(0).abs().max()  # NaN: a query sees no key
    if not gap <= 0.02 * v.nan_to_num(0).abs().max():
        raise ValueError(f"the {type(attention).__name__} of this model gives no weighted sum of the values, so it has "
                         "no attention weights to show: read what it returns by outputs_of.")  # fmt: skip
    return weights


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
            if "forward" in vars(kind):
                new[kind] = refuse
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
    n_layers, n_heads = model.config.n_layers, model.config.n_heads
    cut = torch.zeros(n_layers, n_heads, dtype=torch.bool)
    for layer, head in heads:
        if layer not in range(n_layers) or head not in range(n_heads):
            raise ValueError(f"no head {(layer, head)}: the model has {n_layers} layers of {n_heads} heads, from 0.")
        cut[layer, head] = True
    h = getattr(model.layers[0].attention, "v_dim", model.config.head_dim)  # MLA's values are narrower
    columns = {f"layers.{i}.attention.o_proj": row.repeat_interleave(h) for i, row in enumerate(cut) if row.any()}
    with _hooks(model, columns, lambda name, mixed: mixed.masked_fill(columns[name].to(mixed.device), 0), before=True):
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
            hook = add(lambda _, inputs, output=None, name=name: change(name, inputs[0] if before else output))
            stack.callback(hook.remove)
        yield
