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
    "not_above": lambda t, s: ~torch.ones(t, s, dtype=torch.bool).triu(s - t + 1),
    "last_rows_of_the_square": lambda t, s: torch.ones(s, s).tril()[-t:].bool(),
    "two_parts": lambda t, s: torch.cat((torch.ones(t, s - t).bool(), torch.ones(t, t).tril().bool()), 1),
    "minus_infinity": lambda t, s: torch.full((t, s), -torch.inf).triu(s - t + 1) == 0,
    "positions": lambda t, s: torch.arange(s)[None] <= torch.arange(s - t, s)[:, None],
}
for words, slip, program in (
    ("top left", "first_rows_of_the_square", lambda t, s: torch.ones(s, s).tril()[:t].bool()),
    ("row 0, column 2 is True", "queries_backwards", lambda t, s: torch.ones(t, s).tril(s - t).flip(0).bool()),
    ("row 0, column 0 is False", "keys_backwards", lambda t, s: torch.ones(t, s).tril(s - t).flip(1).bool()),
    ("row 1, column 0 is False", "window_of_two", lambda t, s: torch.ones(t, s).tril(s - t).triu(s - t - 1).bool()),
    ("row 0, column 2 is True", "offset_of_queries", lambda t, s: torch.ones(t, s).tril(t).bool()),
    ("(1, 1, 1), expected (1, 1)", "a_dimension_more", lambda t, s: torch.ones(1, t, s).tril(s - t).bool()),
    ("Is the result boolean?", "uint8", lambda t, s: torch.ones(t, s, dtype=torch.uint8).tril(s - t)),
):
    wrong(words, f"causal_visible__{slip}")(program)


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
def rows__mask_added(q, k, v, visible):
    (B, H, T, h), (K, S) = q.shape, k.shape[1:3]
    bias = torch.zeros(visible.shape).masked_fill(~visible, -torch.inf).expand(B, 1, T, S).repeat(1, 1, H // K, 1)
    scores = q.reshape(B, K, -1, h).float() @ k.float().mT / h**0.5 + bias
    return (scores.softmax(-1) @ v.float()).reshape(B, H, T, h).to(q.dtype)


@right
def rows__bmm_and_exp(q, k, v, visible):
    (B, H, T, h), (K, S) = q.shape, k.shape[1:3]
    seen = visible.expand(B, 1, T, S)[:, :, None].expand(B, K, H // K, T, S).reshape(B * K, -1, S)
    scores = torch.bmm(q.reshape(B * K, -1, h), k.reshape(B * K, S, h).mT).float().mul(h**-0.5)
    weights = (scores - scores.masked_fill(~seen, -1e30).amax(-1, keepdim=True)).masked_fill(~seen, -1e30).exp()
    return torch.bmm((weights / weights.sum(-1, keepdim=True)).to(v.dtype), v.reshape(B * K, S, h)).reshape(B, H, T, h)


def _rows_but(seen=lambda mask, R: torch.cat([mask] * R, -2), scale=lambda h: h**-0.5, shares=lambda s: s.softmax(-1)):
    def program(q, k, v, visible):
        rows, R = q.reshape(len(q), k.shape[1], -1, q.shape[-1]), q.shape[1] // k.shape[1]
        scores = (rows @ k.mT * scale(q.shape[-1])).masked_fill(~seen(visible, R), -torch.inf)
        return (shares(scores) @ v).reshape(q.shape)

    return program


for words, slip, program in (
    ("expected -3.365", "mask_for_the_last_head", _rows_but(
        seen=lambda mask, R: torch.cat([torch.ones_like(mask)] * (R - 1) + [mask], -2))),
    ("expected -3.365", "mask_upside_down", _rows_but(seen=lambda mask, R: torch.cat([mask.flip(-2)] * R, -2))),
    ("expected -3.365", "softmax_over_rows", _rows_but(shares=lambda s: s.softmax(-2).nan_to_num())),
    ("expected -3.363", "not_divided_by_the_sum", _rows_but(shares=lambda s: s.exp())),
    ("expected -3.365", "keys_for_values", lambda q, k, v, seen: rows__einsum(q, k, k, seen)),
    ("expected 0.1333", "groups_backwards", lambda q, k, v, seen: rows__einsum(q, k.flip(1), v.flip(1), seen)),
    ("no gradient reaches k", "keys_detached", lambda q, k, v, seen: rows__einsum(q, k.detach(), v, seen)),
):  # fmt: skip
    wrong(words, f"rows__{slip}")(program)


@wrong("it makes a float tensor of 2,560 numbers; 640 are enough … where it broadcasts")
def rows__a_product_that_broadcasts(q, k, v, visible):
    q, k, v = q.unflatten(1, (k.shape[1], -1)), k[:, :, None], v[:, :, None]
    seen = visible[:, None] if visible.ndim == 4 else visible
    return ((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v).flatten(1, 2)


@wrong("does the mask start again with each head?")
def rows__sdpa_with_is_causal(q, k, v, visible):
    grouped = q.reshape(len(q), k.shape[1], -1, q.shape[-1])
    return F.scaled_dot_product_attention(grouped, k, v, is_causal=True).reshape(q.shape)


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
def gqa_layer__one_projection(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
    both = F.linear(x, torch.cat((w_q, w_k, w_v))).split([len(w_q), len(w_k), len(w_v)], -1)
    q, k, v = (y.view(*y.shape[:2], -1, head_dim).permute(0, 2, 1, 3) for y in both)
    k, v = (y[:, :, None].expand(-1, -1, q.shape[1] // k.shape[1], -1, -1).flatten(1, 2) for y in (k, v))
    q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).movedim(1, 2).reshape(*x.shape[:2], -1) @ w_o.mT


@right
def gqa_layer__einsum(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
    q, k, v = (torch.einsum("btd,nhd->bnth", x, w.unflatten(0, (-1, head_dim))) for w in (w_q, w_k, w_v))
    seen = causal_visible__tril(x.shape[1], x.shape[1])
    mixed = rows__einsum(apply_rope(q, cos, sin), apply_rope(k, cos, sin), v, seen)
    return torch.einsum("bnth,dnh->btd", mixed, w_o.unflatten(1, (-1, head_dim)))


def _layer_with(turn=apply_rope, seen=causal_visible__tril, scale=1.0):
    def program(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
        q, k, v = ((x @ w.T).unflatten(-1, (-1, head_dim)).transpose(1, 2) for w in (w_q, w_k, w_v))
        q, k = turn(q, cos, sin) * scale, turn(k, cos, sin)
        return rows__head_by_head(q, k, v, seen(x.shape[1], x.shape[1])).transpose(1, 2).flatten(-2) @ w_o.T

    return program


RIGHT["gqa_layer"]["with_rows"] = _layer_with()
for words, slip, program in (
    ("backwards", "cos_and_sin_exchanged", _layer_with(lambda y, cos, sin: apply_rope(y, sin, cos))),
    ("Case B 2, T 5", "other_layout", _layer_with(lambda y, cos, sin: apply_rope(y, cos, sin, "interleaved"))),
    ("expected -0.5815", "one_position_early", _layer_with(lambda y, c, s: apply_rope(y, c.roll(1, 0), s.roll(1, 0)))),
    ("expected -0.5815", "turned_twice", _layer_with(lambda y, c, s: apply_rope(apply_rope(y, c, s), c, s))),
    ("expected -0.2831", "half_the_scores", _layer_with(scale=0.5)),
    ("Case 6 query heads", "window_of_three", _layer_with(seen=lambda t, s: torch.ones(t, s).tril().triu(-2).bool())),
    ("expected torch.float32", "float16", lambda *given: _layer_with()(*given).half()),
    ("expected -0.5815", "heads_of_w_o_backwards", lambda x, q, k, v, w_o, h, *turns: _layer_with()(
        x, q, k, v, w_o.unflatten(1, (-1, h)).flip(1).flatten(1), h, *turns)),
):  # fmt: skip
    wrong(words, f"gqa_layer__{slip}")(program)


@wrong("does the mask start again with each head?")
def gqa_layer__rows_with_is_causal(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
    q, k, v = ((x @ w.T).unflatten(-1, (-1, head_dim)).transpose(1, 2) for w in (w_q, w_k, w_v))
    mixed = rows__sdpa_with_is_causal(apply_rope(q, cos, sin), apply_rope(k, cos, sin), v, None)
    return F.linear(mixed.transpose(1, 2).flatten(-2), w_o)
