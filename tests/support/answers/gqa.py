"""Right and wrong answers to the exercises of notebook 04, GQA."""

import math

import torch
from torch.nn import functional as F

from helpers.model import apply_rope
from tests.support.answers.register import RIGHT, right, wrong


@right
def causal_visible__tril(n_query, n_key):
    return torch.ones(n_query, n_key, dtype=torch.bool).tril(n_key - n_query)


RIGHT["causal_visible"] |= {
    "minus_infinity": lambda t, s: torch.full((t, s), -torch.inf).triu(s - t + 1) == 0,
    "positions": lambda t, s: torch.arange(s)[None] <= torch.arange(s - t, s)[:, None],
}
for words, bug, program in (
    ("row 0, column 0 is False", "keys_backwards", lambda t, s: torch.ones(t, s).tril(s - t).flip(1).bool()),
    ("row 1, column 0 is False", "window_of_two", lambda t, s: torch.ones(t, s).tril(s - t).triu(s - t - 1).bool()),
    ("(1, 2, 3), expected (2, 3)", "a_dimension_more", lambda t, s: torch.ones(1, t, s).tril(s - t).bool()),
    (".to(torch.bool) converts", "uint8", lambda t, s: torch.ones(t, s, dtype=torch.uint8).tril(s - t)),
):
    wrong(words, f"causal_visible__{bug}")(program)


def _one_head(q, k, v, visible):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return scores.masked_fill(~visible, float("-inf")).softmax(-1) @ v


@right
def rows__one_head_of_more_rows(q, k, v, visible):
    (B, H, T, h), K = q.shape, k.shape[1]
    seen = visible.expand(B, 1, T, -1).repeat(1, K, H // K, 1).flatten(0, 1)
    mixed = _one_head(q.reshape(B * K, -1, h), k.flatten(0, 1), v.flatten(0, 1), seen)
    return mixed.reshape(B, H, T, h)


@right
def rows__einsum(q, k, v, visible):
    grouped = q.unflatten(1, (k.shape[1], -1))
    scores = torch.einsum("bkrth,bksh->bkrts", grouped, k) * q.shape[-1] ** -0.5
    weights = torch.where(visible[:, None] if visible.ndim == 4 else visible, scores, -1e9).softmax(-1)
    return torch.einsum("bkrts,bksh->bkrth", weights.to(v.dtype), v).flatten(1, 2)


@right
def rows__head_by_head(q, k, v, visible):
    R, seen = q.shape[1] // k.shape[1], visible if visible.ndim == 2 else visible[:, 0]
    heads = [_one_head(q[:, i], k[:, i // R], v[:, i // R], seen) for i in range(q.shape[1])]
    return torch.stack(heads, 1)


@right
def rows__bmm_and_exp(q, k, v, visible):
    (B, H, T, h), (K, S) = q.shape, k.shape[1:3]
    seen = visible.expand(B, 1, T, S)[:, :, None].expand(B, K, H // K, T, S).reshape(B * K, -1, S)
    scores = torch.bmm(q.reshape(B * K, -1, h), k.reshape(B * K, S, h).mT).float().mul(h**-0.5)
    weights = (scores - scores.masked_fill(~seen, -1e30).amax(-1, keepdim=True)).masked_fill(~seen, -1e30).exp()
    return torch.bmm((weights / weights.sum(-1, keepdim=True)).to(v.dtype), v.reshape(B * K, S, h)).reshape(B, H, T, h)


def _rows_but(seen=lambda mask, R: torch.cat([mask] * R, -2), shares=lambda s: s.softmax(-1)):
    def program(q, k, v, visible):
        rows, R = q.reshape(len(q), k.shape[1], -1, q.shape[-1]), q.shape[1] // k.shape[1]
        scores = (rows @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen(visible, R), -torch.inf)
        return (shares(scores) @ v).reshape(q.shape)

    return program


for words, bug, program in (
    ("the result is off by", "mask_upside_down", _rows_but(seen=lambda mask, R: torch.cat([mask.flip(-2)] * R, -2))),
    ("the result is off by", "softmax_over_rows", _rows_but(shares=lambda s: s.softmax(-2).nan_to_num())),
    ("the result is off by", "groups_backwards", lambda q, k, v, seen: rows__einsum(q, k.flip(1), v.flip(1), seen)),
):  # fmt: skip
    wrong(words, f"rows__{bug}")(program)


@wrong("it makes a float tensor of 2,560 numbers; 640 are enough … where it broadcasts")
def rows__a_product_that_broadcasts(q, k, v, visible):
    q, k, v = q.unflatten(1, (k.shape[1], -1)), k[:, :, None], v[:, :, None]
    seen = visible[:, None] if visible.ndim == 4 else visible
    return ((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v).flatten(1, 2)


@right
def gqa_layer__sdpa(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
    q, k, v = ((x @ w.T).unflatten(-1, (-1, head_dim)).transpose(1, 2) for w in (w_q, w_k, w_v))
    q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return F.linear(mixed.transpose(1, 2).flatten(-2), w_o)


@right
def gqa_layer__head_by_head(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
    T, y, heads = x.shape[1], 0.0, [w.split(head_dim) for w in (w_q, w_k, w_v)]
    for i, columns in enumerate(w_o.split(head_dim, 1)):
        q, k, v = (x @ part[i * len(part) // len(heads[0])].T for part in heads)
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        y = y + _one_head(q, k, v, causal_visible__tril(T, T)) @ columns.T
    return y


@right
def gqa_layer__einsum(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
    q, k, v = (torch.einsum("btd,nhd->bnth", x, w.unflatten(0, (-1, head_dim))) for w in (w_q, w_k, w_v))
    seen = causal_visible__tril(x.shape[1], x.shape[1])
    mixed = rows__einsum(apply_rope(q, cos, sin), apply_rope(k, cos, sin), v, seen)
    return torch.einsum("bnth,dnh->btd", mixed, w_o.unflatten(1, (-1, head_dim)))


def _layer_with(turn=apply_rope, seen=causal_visible__tril):
    def program(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
        q, k, v = ((x @ w.T).unflatten(-1, (-1, head_dim)).transpose(1, 2) for w in (w_q, w_k, w_v))
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        return rows__head_by_head(q, k, v, seen(x.shape[1], x.shape[1])).transpose(1, 2).flatten(-2) @ w_o.T

    return program


for words, bug, program in (
    ("cos and sin exchanged", "cos_and_sin_exchanged", _layer_with(lambda y, cos, sin: apply_rope(y, sin, cos))),
    ("Case B 2, T 5", "other_layout", _layer_with(lambda y, cos, sin: apply_rope(y, cos, sin, "interleaved"))),
    ("the result is off by", "turned_twice", _layer_with(lambda y, c, s: apply_rope(apply_rope(y, c, s), c, s))),
    ("Case B 2, T 5", "window_of_three", _layer_with(seen=lambda t, s: torch.ones(t, s).tril().triu(-2).bool())),
):  # fmt: skip
    wrong(words, f"gqa_layer__{bug}")(program)


KEPT = {}


@wrong("expected (3, 7)")
def causal_visible__kept_by_n_key(n_query, n_key):
    """A mask that is made once for each n_key: the next step asks for fewer rows."""
    if n_key not in KEPT:
        KEPT[n_key] = torch.arange(n_key) <= torch.arange(n_key - n_query, n_key)[:, None]
    return KEPT[n_key]
