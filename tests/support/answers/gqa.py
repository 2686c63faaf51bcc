"""Right and wrong answers to the exercises of notebook 04, GQA."""

import math

import torch

from tests.support.answers.register import right, wrong


@right
def causal_visible__positions(n_query, n_key):
    return torch.arange(n_key) <= torch.arange(n_key - n_query, n_key)[:, None]


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
def repeat_kv__expand(x, n_rep):
    B, K, S, h = x.shape
    return x[:, :, None].expand(B, K, n_rep, S, h).reshape(B, K * n_rep, S, h)


@right
def cache_write__index(cache, length, new):
    room, end = cache.shape[2], length + new.shape[2]
    cache[:, :, torch.arange(length, end) % room] = new
    return cache[:, :, torch.arange(max(0, end - room), end) % room]


@right
def cache_write__loop_and_roll(cache, length, new):
    room, end = cache.shape[2], length + new.shape[2]
    for t, column in enumerate(new.unbind(2)):
        cache[:, :, (length + t) % room].copy_(column)
    return cache[:, :, :end].clone() if end < room else cache.roll(-(end % room), 2)


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
def context_that_fits__the_larger_count(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number, window):
    free, half = memory - weights, n_layers * n_kv_heads * head_dim * bytes_per_number
    return max(0, free // (2 * half), free // half - window)


@right
def context_that_fits__with_an_if(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number, window):
    per_token = 2 * n_layers * n_kv_heads * head_dim * bytes_per_number
    free = memory - weights
    if free < 0:
        return 0
    if free <= window * per_token:
        return math.floor(free / per_token)
    return window + int((free - window * per_token) // (per_token / 2))


wrong("part of a token", "context_that_fits__float")(lambda *sizes: float(context_that_fits__the_larger_count(*sizes)))
