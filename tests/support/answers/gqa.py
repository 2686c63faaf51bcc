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
def causal_visible__loops(n_query, n_key):
    visible = torch.zeros(n_query, n_key, dtype=torch.bool)
    for t in range(n_query):
        visible[t, : n_key - n_query + t + 1] = True
    return visible


@wrong("boolean")
def causal_visible__integers(n_query, n_key):
    return torch.ones(n_query, n_key, dtype=torch.int64).tril(n_key - n_query)


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
def attention_head__loops(q, k, v, visible):
    out = []
    for b in range(len(q)):
        for t in range(q.shape[1]):
            seen = visible[t].nonzero()[:, 0]
            scores = k[b, seen].float() @ q[b, t].float() / q.shape[2] ** 0.5
            out.append(scores.softmax(0) @ v[b, seen].float())
    return torch.stack(out).reshape(q.shape).to(q.dtype)


@wrong("dim=-1")
def attention_head__softmax_over_batch(q, k, v, visible):
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, -1e4).softmax(0) @ v


@wrong("float16")
def attention_head__minus_1e9_in_float16(q, k, v, visible):
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible, -1e9).softmax(-1) @ v


@wrong("transpose")
def attention_head__transpose_forgotten(q, k, v, visible):
    return (q @ k / math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf).softmax(-1) @ v


@right
def repeat_kv__repeat_interleave(x, n_rep):
    return torch.repeat_interleave(x, n_rep, dim=1)


@right
def repeat_kv__expand(x, n_rep):
    B, K, S, h = x.shape
    return x[:, :, None].expand(B, K, n_rep, S, h).reshape(B, K * n_rep, S, h)


@right
def repeat_kv__index(x, n_rep):
    return x[:, [head // n_rep for head in range(x.shape[1] * n_rep)]]


@right
def cache_write__slice(cache, length, new):
    end = length + new.shape[2]
    cache[:, :, length:end] = new
    return cache[:, :, :end]


@right
def cache_write__loop(cache, length, new):
    for t, column in enumerate(new.unbind(2)):
        cache[:, :, length + t].copy_(column)
    return torch.cat((cache[:, :, :length], new), dim=2)


@right
def cache_write__index_copy(cache, length, new):
    cache.index_copy_(2, torch.arange(length, length + new.size(2)), new)
    return cache.narrow(2, 0, length + new.size(2)).clone()


@wrong("cache itself")
def cache_write__into_a_reshaped_copy(cache, length, new):
    batch, heads, room, width = cache.shape
    end = length + new.shape[2]
    flat = cache.reshape(batch * heads, room, width)
    flat[:, length:end] = new.reshape(batch * heads, -1, width)
    return flat[:, :end].reshape(batch, heads, end, width)


@wrong("cache that was handed over")
def cache_write__two_results_from_a_copy(cache, length, new):
    copy, end = cache.clone(), length + new.shape[2]
    copy[:, :, length:end] = new
    return copy[:, :, :end], copy


@wrong("all keys so far")
def cache_write__returns_nothing(cache, length, new):
    cache[:, :, length : length + new.shape[2]] = new


@wrong("all T new keys")
def cache_write__one_key_only(cache, length, new):
    cache[:, :, length] = new[:, :, 0]
    return cache[:, :, : length + new.shape[2]]


@right
def context_that_fits__floor(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number):
    return max(0, (memory - weights) // (2 * n_layers * n_kv_heads * head_dim * bytes_per_number))


@right
def context_that_fits__with_an_if(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number):
    if weights >= memory:
        return 0
    return math.floor((memory - weights) / (2 * n_layers * n_kv_heads * head_dim * bytes_per_number))


@right
def context_that_fits__counts_up(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number):
    one_token = sum(n_kv_heads * head_dim * bytes_per_number for _ in range(2 * n_layers))
    tokens, step = 0, 2**40
    while step:
        if weights + (tokens + step) * one_token <= memory:
            tokens += step
        step //= 2
    return tokens


@wrong("Round, then int")
def context_that_fits__float(memory, weights, n_layers, n_kv_heads, head_dim, bytes_per_number):
    return (memory - weights) / (2 * n_layers * n_kv_heads * head_dim * bytes_per_number)
