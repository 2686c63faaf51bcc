"""Right and wrong answers to the exercises of notebook 04, GQA."""

import math

import torch
from torch.nn import functional as F

from helpers.model import apply_rope
from tests.support.answers.register import right, wrong


@right
def causal_visible__tril(n_query, n_key):
    return torch.ones(n_query, n_key, dtype=torch.bool).tril(n_key - n_query)


@right
def attention_head__softmax(q, k, v, visible):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return scores.masked_fill(~visible, float("-inf")).softmax(-1) @ v


@right
def attention_head__einsum_and_where(q, k, v, visible):
    scores = torch.einsum("bth,bsh->bts", q.float(), k.float()) * q.shape[-1] ** -0.5
    weights = torch.where(visible, scores, -1e9).softmax(-1)
    return torch.einsum("bts,bsh->bth", weights, v.float()).to(q.dtype)


@right
def rows__one_head_of_more_rows(q, k, v, visible):
    (B, H, T, h), K = q.shape, k.shape[1]
    seen = visible.expand(B, 1, T, -1).repeat(1, K, H // K, 1).flatten(0, 1)
    mixed = attention_head__softmax(q.reshape(B * K, -1, h), k.flatten(0, 1), v.flatten(0, 1), seen)
    return mixed.reshape(B, H, T, h)


@right
def rows__einsum(q, k, v, visible):
    grouped = q.unflatten(1, (k.shape[1], -1))
    scores = torch.einsum("bkrth,bksh->bkrts", grouped, k) * q.shape[-1] ** -0.5
    weights = torch.where(visible[:, None] if visible.ndim == 4 else visible, scores, -1e9).softmax(-1)
    return torch.einsum("bkrts,bksh->bkrth", weights.to(v.dtype), v).flatten(1, 2)


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
def attention_in_blocks__key_by_key(q, k, v, visible, block):
    top, total, mixed = q.new_tensor(-1e9), torch.zeros_like(q[..., 0]), torch.zeros_like(q)
    for s in range(k.shape[1]):
        score = ((q * k[:, s, None]).sum(-1) * q.shape[-1] ** -0.5).masked_fill(~visible[:, s], -torch.inf)
        new = torch.maximum(top, score)
        down, share = torch.exp(top - new), torch.exp(score - new)
        total, mixed, top = total * down + share, mixed * down[..., None] + share[..., None] * v[:, s, None], new
    return mixed / total[..., None]


wrong("never a table of all", "attention_in_blocks__not_in_blocks")(lambda *given: attention_head__softmax(*given[:4]))


@right
def cache_write__index(cache, length, new):
    room, end = cache.shape[2], length + new.shape[2]
    cache[:, :, torch.arange(length, end) % room] = new
    slots = torch.arange(min(room, end))
    return cache[:, :, : len(slots)], slots + (end - 1 - slots) // room * room


@wrong("cache itself")
def cache_write__into_a_reshaped_copy(cache, length, new):
    batch, heads, room, width = cache.shape
    flat, end = cache.reshape(batch * heads, room, width), length + new.shape[2]
    flat[:, torch.arange(length, end) % room] = new.reshape(batch * heads, -1, width)
    return flat[:, :end].reshape(batch, heads, -1, width), cache_write__index(cache.clone(), length, new)[1]


wrong("it returns one result", "cache_write__forgets_the_positions")(lambda *given: cache_write__index(*given)[0])


@wrong("A slice ends at the last slot")
def cache_write__a_slice_that_does_not_roll(cache, length, new):
    room, end = cache.shape[2], length + new.shape[2]
    cache[:, :, length % room : length % room + new.shape[2]] = new
    return cache[:, :, :end], torch.arange(min(end, room))


@right
def gqa_layer__sdpa(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
    q, k, v = ((x @ w.T).unflatten(-1, (-1, head_dim)).transpose(1, 2) for w in (w_q, w_k, w_v))
    q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return F.linear(mixed.transpose(1, 2).flatten(-2), w_o)


@wrong("does the mask start again with each head?")
def gqa_layer__rows_with_is_causal(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
    q, k, v = ((x @ w.T).unflatten(-1, (-1, head_dim)).transpose(1, 2) for w in (w_q, w_k, w_v))
    mixed = rows__sdpa_with_is_causal(apply_rope(q, cos, sin), apply_rope(k, cos, sin), v, None)
    return F.linear(mixed.transpose(1, 2).flatten(-2), w_o)
