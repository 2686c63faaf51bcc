"""Wrong LLaMAs, each one slip away from the right one: test_parity.py must reject every one of them.

Most of these slips were found in published courses and ports. Each is a small patch of `helpers.model`, in force
inside `with wrong_model(name):`.
"""

import math
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F

from helpers import model as right
from helpers.model import GroupedQueryAttention, Llama, RMSNorm, SwiGLU, TransformerBlock

_rope_inv_freq, _apply_rope = right.rope_inv_freq, right.apply_rope
_project, _rotation_and_mask, _init = GroupedQueryAttention.project, Llama.rotation_and_mask, Llama.__init__

# ------------------------------------- what is patched, its name, what it becomes: one function for each of these


def _norm(statistics=lambda x: x.float().pow(2), dim=-1, gain=True, scale=lambda s, eps: torch.rsqrt(s + eps)):
    def forward(self, x):
        normalised = x.float() * scale(statistics(x).mean(dim=dim, keepdim=True), self.eps)
        return self.weight * normalised.to(x.dtype) if gain else normalised.to(x.dtype)

    return RMSNorm, "forward", forward


def _speeds(change):
    return right, "rope_inv_freq", lambda head_dim, theta, scaling=None: change(head_dim, theta, scaling)


def _turn(change):
    return right, "apply_rope", change


def _projected(change):
    """change(q, k, v, ...), given the module, its input and the angles as well."""

    def project(self, x, cos, sin):
        return change(*_project(self, x, cos, sin), self, x, cos, sin)

    return GroupedQueryAttention, "project", project


def _shared(change):
    """change(make, n_query, n_cached, n_pad), where make gives the right angles and the right mask for such numbers."""

    def rotation_and_mask(self, n_query, n_cached=0, n_pad=None, device=None):
        return change(partial(_rotation_and_mask, self), n_query, n_cached, n_pad)

    return Llama, "rotation_and_mask", rotation_and_mask


def _mask(change):
    """change(query position, key position) for the plain or rectangular causal mask (T, S)."""

    def shared(make, n_query, n_cached, n_pad):
        key = torch.arange(n_cached + n_query)
        return *make(n_query, n_cached, n_pad)[:2], change(key[n_cached:, None], key)

    return _shared(shared)


def _made(change):
    """change(model) after a model has been made."""

    def init(self, config):
        _init(self, config)
        change(self)

    return Llama, "__init__", init


# --------------------------------------------------------------------------------------- the longer of the changes


def _norm_without_upcast(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps))


def _layer_norm(self, x):
    return F.layer_norm(x, x.shape[-1:], self.weight, eps=self.eps)


def _no_scaling(head_dim, theta, scaling):
    return _rope_inv_freq(head_dim, theta)


def _keys_not_rotated(q, k, v, self, x, cos, sin):
    return q, self.k_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2), v


def _square_mask(make, n_query, n_cached, n_pad):
    """The mask of a chunk forgets what the cache holds: query 0 of the chunk sees key 0 only."""
    visible = torch.arange(n_cached + n_query) <= torch.arange(n_query)[:, None]
    return *make(n_query, n_cached, n_pad)[:2], visible


def _chunk_sees_all(make, n_query, n_cached, n_pad):
    """With a cache nothing is hidden: right for one token at a time, wrong for several."""
    cos, sin, visible = make(n_query, n_cached, n_pad)
    return cos, sin, torch.ones_like(visible) if n_cached else visible


def _positions_restart(make, n_query, n_cached, n_pad):
    return *make(n_query, 0, n_pad)[:2], make(n_query, n_cached, n_pad)[2]


def _padding_of_the_first_row(make, n_query, n_cached, n_pad):
    return make(n_query, n_cached, None if n_pad is None else n_pad[:1].expand(len(n_pad)))


def _post_norm(self, x, *shared):
    x = self.attention_norm(x + self.attention(x, *shared))
    return self.ffn_norm(x + self.feed_forward(x))


def _no_final_norm(model):
    model.final_norm.register_forward_hook(lambda module, args, output: args[0])


def _tied_by_copy(model):
    """Equal values, so that only the gradient tells."""
    model.lm_head.weight = nn.Parameter(model.tok_embeddings.weight.detach().clone())

    def copy_values(*_):
        model.lm_head.weight.data.copy_(model.tok_embeddings.weight.data)

    model.register_forward_pre_hook(copy_values)


# name: (the comparison of test_parity.py that must reject it, what is patched, its name, what it becomes)
WRONG_MODELS = {
    "norm weight ignored": ("gqa", *_norm(gain=False)),
    "norm over tokens and width together": ("gqa", *_norm(dim=(-2, -1))),
    "norm subtracts the mean": ("gqa", RMSNorm, "forward", _layer_norm),
    "norm statistics without a gradient": ("gqa", *_norm(lambda x: x.detach().float().pow(2))),
    "norm without the float32 upcast": ("float16, large activations", RMSNorm, "forward", _norm_without_upcast),
    "eps 1e-5 for 1e-6": ("small weights", *_norm(scale=lambda s, eps: torch.rsqrt(s + 1e-5))),
    "norm by mean instead of mean square": ("gqa", *_norm(lambda x: x.float().abs())),
    "eps outside the root": ("small weights", *_norm(scale=lambda s, eps: 1 / (s.sqrt() + eps))),
    "eps left out": ("small weights", *_norm(scale=lambda s, eps: torch.rsqrt(s))),
    "theta 50 000 for 500 000": ("gqa", *_speeds(lambda h, theta, scaling: _rope_inv_freq(h, 50_000.0, scaling))),
    "turning speeds in bfloat16": ("gqa", *_speeds(lambda *sizes: _rope_inv_freq(*sizes).bfloat16().float())),
    "no llama3 scaling": ("llama3, 600 tokens", *_speeds(_no_scaling)),
    "llama3 factor 8 for 32": (
        "llama3, 600 tokens", *_speeds(lambda h, theta, scaling: _rope_inv_freq(h, theta, scaling | {"factor": 8.0})),
    ),
    "no linear scaling": ("linear", *_speeds(_no_scaling)),
    "neighbours paired instead of halves": ("gqa", *_turn(lambda x, cos, sin: _apply_rope(x, cos, sin, "interleaved"))),
    "sine sign flipped": ("gqa", *_turn(lambda x, cos, sin: _apply_rope(x, cos, -sin))),
    "no rotation": ("gqa", *_turn(lambda x, cos, sin: x)),
    "v rotated too": ("gqa", *_projected(lambda q, k, v, self, x, *angles: (q, k, _apply_rope(v, *angles)))),
    "k not rotated": ("gqa", *_projected(_keys_not_rotated)),
    "scaled by dim, not head_dim": (
        "gqa", *_projected(lambda q, k, v, self, *_: (q * math.sqrt(self.head_dim / self.o_proj.out_features), k, v)),
    ),
    "scores not scaled": ("gqa", *_projected(lambda q, k, v, self, *_: (q * math.sqrt(self.head_dim), k, v))),
    "k and v swapped": ("gqa", *_projected(lambda q, k, v, *_: (q, v, k))),
    "no gradient through the keys": ("gqa", *_projected(lambda q, k, v, *_: (q, k.detach(), v))),
    "repeat for repeat_interleave": ("gqa", right, "repeat_kv", lambda x, n_rep: x.repeat(1, n_rep, 1, 1)),
    "no mask": ("gqa", *_mask(lambda q, k: k >= 0 * q)),
    "mask off by one: sees the next token": ("gqa", *_mask(lambda q, k: k <= q + 1)),
    "mask off by one: does not see itself": ("gqa", *_mask(lambda q, k: (k < q) | (q == 0) & (k == 0))),
    "square mask on a cached chunk": ("gqa, cached 5+4+7", *_shared(_square_mask)),
    "no mask inside a cached chunk": ("gqa, cached 5+4+7", *_shared(_chunk_sees_all)),
    "positions not offset by the cache": ("gqa, cached one by one", *_shared(_positions_restart)),
    "padding seen": ("left-padded", *_mask(lambda q, k: k <= q)),
    "padding seen from the cache": ("left-padded, cached 5+4+7", *_mask(lambda q, k: k <= q)),
    "every row padded like the first": ("left-padded", *_shared(_padding_of_the_first_row)),
    "gate and up swapped": ("gqa", SwiGLU, "forward", lambda f, x: f.down_proj(f.gate_proj(x) * F.silu(f.up_proj(x)))),
    "GELU for SiLU": ("gqa", SwiGLU, "forward", lambda f, x: f.down_proj(F.gelu(f.gate_proj(x)) * f.up_proj(x))),
    "no gate": ("gqa", SwiGLU, "forward", lambda f, x: f.down_proj(f.gate_proj(x) * f.up_proj(x))),
    "post-norm instead of pre-norm": ("gqa", TransformerBlock, "forward", _post_norm),
    "residual taken from the normalised x": ("gqa", TransformerBlock, "forward", lambda b, x, *rest: (
        h := b.attention_norm(x) + b.attention(b.attention_norm(x), *rest)) + b.feed_forward(b.ffn_norm(h))),
    "feed-forward beside attention": ("gqa", TransformerBlock, "forward", lambda b, x, *rest: (
        x + b.attention(b.attention_norm(x), *rest) + b.feed_forward(b.ffn_norm(x)))),
    "the two norms exchanged": ("gqa", TransformerBlock, "forward", lambda b, x, *rest: (
        h := x + b.attention(b.ffn_norm(x), *rest)) + b.feed_forward(b.attention_norm(h))),
    "no final norm": ("gqa", *_made(_no_final_norm)),
    "tied by copy": ("tied", *_made(_tied_by_copy)),
}  # fmt: skip


@contextmanager
def wrong_model(name: str):
    """Inside this block `helpers.model` makes the named mistake."""
    _, owner, attribute, replacement = WRONG_MODELS[name]
    with patch.object(owner, attribute, replacement):
        yield
