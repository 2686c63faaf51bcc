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
def repeat_kv__repeat_interleave(x, n_rep):
    return torch.repeat_interleave(x, n_rep, dim=1)


@right
def cache_write__index(cache, length, new):
    room, end = cache.shape[2], length + new.shape[2]
    cache[:, :, torch.arange(length, end) % room] = new
    return cache[:, :, torch.arange(max(0, end - room), end) % room]


@wrong("cache itself")
def cache_write__into_a_reshaped_copy(cache, length, new):
    batch, heads, room, width = cache.shape
    flat, end = cache.reshape(batch * heads, room, width), length + new.shape[2]
    flat[:, torch.arange(length, end) % room] = new.reshape(batch * heads, -1, width)
    newest = flat[:, torch.arange(max(0, end - room), end) % room]
    return newest.reshape(batch, heads, -1, width)


@wrong("cache that was handed over")
def cache_write__two_results_from_a_copy(cache, length, new):
    copy = cache.clone()
    return cache_write__index(copy, length, new), copy


@wrong("newest keys")
def cache_write__returns_nothing(cache, length, new):
    cache_write__index(cache, length, new)


@wrong("A slice ends at the last slot")
def cache_write__a_slice_that_does_not_roll(cache, length, new):
    room, end = cache.shape[2], length + new.shape[2]
    cache[:, :, length % room : length % room + new.shape[2]] = new
    return cache[:, :, torch.arange(max(0, end - room), end) % room]


@wrong("past the last slot")
def cache_write__a_cache_that_does_not_roll(cache, length, new):
    end = length + new.shape[2]
    for t in range(length, min(end, cache.shape[2])):
        cache[:, :, t] = new[:, :, t - length]
    return cache[:, :, :end]


@right
def gqa_layer__sdpa(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
    q, k, v = ((x @ w.T).unflatten(-1, (-1, head_dim)).transpose(1, 2) for w in (w_q, w_k, w_v))
    q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return F.linear(mixed.transpose(1, 2).flatten(-2), w_o)


@right
def gqa_layer__rows_that_share_a_key(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
    B, T, _ = x.shape
    q, k, v = (F.linear(x, w).view(B, T, -1, head_dim).permute(0, 2, 1, 3) for w in (w_q, w_k, w_v))
    q, k = apply_rope(q, cos, sin).reshape(B, k.shape[1], -1, head_dim), apply_rope(k, cos, sin)
    scores = (q @ k.mT * head_dim**-0.5).view(B, -1, T, T)
    weights = torch.where(causal_visible__tril(T, T), scores, -1e9).softmax(-1)
    mixed = (weights.reshape(B, k.shape[1], -1, T) @ v).reshape(B, -1, T, head_dim)
    return torch.einsum("bhtc,dhc->btd", mixed, w_o.unflatten(1, (-1, head_dim)))


@wrong("it raises")
def gqa_layer__turned_before_the_split(x, w_q, w_k, w_v, w_o, head_dim, cos, sin):
    q = apply_rope(x @ w_q.T, cos, sin)
    return q @ w_o.T
