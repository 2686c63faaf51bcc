"""Wrong LLaMAs, each one slip away from the right one: test_parity.py must reject every one of them.

Most of these slips were found in published courses and ports. Each is a small patch of `helpers.model`, in force
inside `with wrong_model(name):`.
"""

import math
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F

from helpers import model as right
from helpers.model import GroupedQueryAttention, Llama, RMSNorm, SwiGLU, TransformerBlock

_rope_inv_freq, _apply_rope = right.rope_inv_freq, right.apply_rope
_project, _rotation_and_mask = GroupedQueryAttention.project, Llama.rotation_and_mask
_init, _attention_forward = Llama.__init__, GroupedQueryAttention.forward

# ------------------------------------------------------------------------------------------------ norm


def _norm(statistics=lambda x: x.float().pow(2), dim=-1, gain=True, scale=None):
    def forward(self, x):
        root = scale or (lambda mean_square, eps: torch.rsqrt(mean_square + eps))
        normalised = x.float() * root(statistics(x).mean(dim=dim, keepdim=True), self.eps)
        return self.weight * normalised.to(x.dtype) if gain else normalised.to(x.dtype)

    return forward


def _norm_without_upcast(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps))


def _layer_norm(self, x):
    return F.layer_norm(x, x.shape[-1:], self.weight, eps=self.eps)


# ---------------------------------------------------------------------------------------------- angles


def _rope_theta_50_000(head_dim, theta, scaling=None):
    return _rope_inv_freq(head_dim, 50_000.0, scaling)


def _no_scaling(head_dim, theta, scaling=None):
    return _rope_inv_freq(head_dim, theta)


def _factor_8(head_dim, theta, scaling=None):
    return _rope_inv_freq(head_dim, theta, scaling | {"factor": 8.0})


def _bands_swapped(head_dim, theta, scaling=None):
    """llama3 scaling that slows the fast pairs and keeps the slow ones."""
    kept, slowed = _rope_inv_freq(head_dim, theta), _rope_inv_freq(head_dim, theta, scaling)
    return kept + kept / scaling["factor"] - slowed


def _speeds_in_bfloat16(head_dim, theta, scaling=None):
    return _rope_inv_freq(head_dim, theta, scaling).bfloat16().float()


def _exponent_over_half(head_dim, theta, scaling=None):
    """theta^(-i / (h/2 - 1)): the last pair turns at 1/theta, one step too slow."""
    return 1.0 / theta ** torch.linspace(0, 1, head_dim // 2)


def _neighbours_paired(x, cos, sin, layout="halves"):
    return _apply_rope(x, cos, sin, "interleaved")


def _sine_sign_flipped(x, cos, sin, layout="halves"):
    return _apply_rope(x, cos, -sin, layout)


def _no_rotation(x, cos, sin, layout="halves"):
    return x


def _mixed_layout(x, cos, sin, layout="halves"):
    """Neighbours are paired, but each gets the angle that belongs to the layout of halves."""
    a, b = x[..., 0::2], x[..., 1::2]
    turned = torch.stack((-b, a), dim=-1).flatten(-2)
    return x * torch.cat((cos, cos), dim=-1) + turned * torch.cat((sin, sin), dim=-1)


# ------------------------------------------------------------------------------------------- attention


def _scaled_by_dim(self, x, cos, sin):
    q, k, v = _project(self, x, cos, sin)
    return q * math.sqrt(self.head_dim / self.o_proj.out_features), k, v


def _not_scaled(self, x, cos, sin):
    q, k, v = _project(self, x, cos, sin)
    return q * math.sqrt(self.head_dim), k, v


def _values_rotated(self, x, cos, sin):
    q, k, v = _project(self, x, cos, sin)
    return q, k, _apply_rope(v, cos, sin)


def _keys_not_rotated(self, x, cos, sin):
    q, _, v = _project(self, x, cos, sin)
    return q, self.k_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2), v


def _keys_and_values_swapped(self, x, cos, sin):
    q, k, v = _project(self, x, cos, sin)
    return q, v, k


def _keys_without_gradient(self, x, cos, sin):
    q, k, v = _project(self, x, cos, sin)
    return q, k.detach(), v


def _repeat_in_turn(x, n_rep):
    return x.repeat(1, n_rep, 1, 1)


def _heads_not_put_back(self, x, cos, sin, visible=None, cache=None, layer=0):
    """(B, H, T, h) is read as (B, T, H * h) without the transpose that belongs before it."""
    q, k, v = self.project(x, cos, sin)
    k, v = right.repeat_kv(k, self.n_rep), right.repeat_kv(v, self.n_rep)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None)
    return self.o_proj(mixed.reshape(*x.shape[:2], -1))


# ------------------------------------------------------------------------------- masks, positions, cache


def _mask(change):
    """Replace the plain or rectangular causal mask (T, S) by change(query position, key position)."""

    def rotation_and_mask(self, n_query, n_cached=0, n_pad=None, device=None):
        cos, sin, _ = _rotation_and_mask(self, n_query, n_cached, n_pad, device)
        key = torch.arange(n_cached + n_query)
        return cos, sin, change(key[n_cached:, None], key)

    return rotation_and_mask


def _square_mask(self, n_query, n_cached=0, n_pad=None, device=None):
    """The mask of a chunk forgets what the cache holds: query 0 of the chunk sees key 0 only."""
    cos, sin, _ = _rotation_and_mask(self, n_query, n_cached, n_pad, device)
    key = torch.arange(n_cached + n_query)
    return cos, sin, key <= torch.arange(n_query)[:, None]


def _chunk_sees_all(self, n_query, n_cached=0, n_pad=None, device=None):
    """With a cache nothing is hidden: right for one token at a time, wrong for several."""
    cos, sin, visible = _rotation_and_mask(self, n_query, n_cached, n_pad, device)
    return cos, sin, torch.ones_like(visible) if n_cached else visible


def _positions_restart(self, n_query, n_cached=0, n_pad=None, device=None):
    cos, sin, _ = _rotation_and_mask(self, n_query, 0, n_pad, device)
    return cos, sin, _rotation_and_mask(self, n_query, n_cached, n_pad, device)[2]


def _positions_one_late(self, n_query, n_cached=0, n_pad=None, device=None):
    """After the first call every position is counted one too far."""
    cos, sin, _ = _rotation_and_mask(self, n_query, n_cached + bool(n_cached), n_pad, device)
    return cos, sin, _rotation_and_mask(self, n_query, n_cached, n_pad, device)[2]


def _padding_seen(self, n_query, n_cached=0, n_pad=None, device=None):
    cos, sin, _ = _rotation_and_mask(self, n_query, n_cached, n_pad, device)
    return cos, sin, right.causal_visible(n_query, n_cached + n_query)


def _padding_of_the_first_row(self, n_query, n_cached=0, n_pad=None, device=None):
    n_pad = None if n_pad is None else n_pad[:1].expand(len(n_pad))
    return _rotation_and_mask(self, n_query, n_cached, n_pad, device)


# ----------------------------------------------------------------------------- feed-forward, block, model


def _gate_and_up_swapped(self, x):
    return self.down_proj(self.gate_proj(x) * F.silu(self.up_proj(x)))


def _gelu_for_silu(self, x):
    return self.down_proj(F.gelu(self.gate_proj(x)) * self.up_proj(x))


def _no_gate(self, x):
    return self.down_proj(F.silu(self.gate_proj(x)))


def _post_norm(self, x, *shared):
    x = self.attention_norm(x + self.attention(x, *shared))
    return self.ffn_norm(x + self.feed_forward(x))


def _residual_from_normalised(self, x, *shared):
    x = self.attention_norm(x)
    x = x + self.attention(x, *shared)
    x = self.ffn_norm(x)
    return x + self.feed_forward(x)


def _ffn_beside_attention(self, x, *shared):
    """Both branches read the same input, as in GPT-J."""
    return x + self.attention(self.attention_norm(x), *shared) + self.feed_forward(self.ffn_norm(x))


def _norms_exchanged(self, x, *shared):
    x = x + self.attention(self.ffn_norm(x), *shared)
    return x + self.feed_forward(self.attention_norm(x))


def _no_final_norm(self, x, last_only):
    return self.lm_head(x[:, -1:] if last_only else x)


def _tied_by_copy(self, config):
    _init(self, config)
    self.lm_head.weight = nn.Parameter(self.tok_embeddings.weight.detach().clone())

    def copy_values(module, args):  # equal values, so that only the gradient tells
        module.lm_head.weight.data.copy_(module.tok_embeddings.weight.data)

    self.register_forward_pre_hook(copy_values)


# name: (the comparison of test_parity.py that must reject it, what is patched, its name, what it becomes)
WRONG_MODELS = {
    "norm weight ignored": ("gqa", RMSNorm, "forward", _norm(gain=False)),
    "norm over tokens and width together": ("gqa", RMSNorm, "forward", _norm(dim=(-2, -1))),
    "norm by mean instead of mean square": ("gqa", RMSNorm, "forward", _norm(lambda x: x.float().abs())),
    "norm subtracts the mean": ("gqa", RMSNorm, "forward", _layer_norm),
    "norm statistics without a gradient": ("gqa", RMSNorm, "forward", _norm(lambda x: x.detach().float().pow(2))),
    "norm without the float32 upcast": ("float16, large activations", RMSNorm, "forward", _norm_without_upcast),
    "eps 1e-5 for 1e-6": ("small weights", RMSNorm, "forward", _norm(scale=lambda s, eps: torch.rsqrt(s + 1e-5))),
    "eps left out": ("small weights", RMSNorm, "forward", _norm(scale=lambda s, eps: torch.rsqrt(s))),
    "eps outside the root": ("small weights", RMSNorm, "forward", _norm(scale=lambda s, eps: 1 / (s.sqrt() + eps))),
    "theta 50 000 for 500 000": ("gqa", right, "rope_inv_freq", _rope_theta_50_000),
    "slowest pair one step too slow": ("gqa", right, "rope_inv_freq", _exponent_over_half),
    "turning speeds in bfloat16": ("gqa", right, "rope_inv_freq", _speeds_in_bfloat16),
    "no llama3 scaling": ("llama3, 600 tokens", right, "rope_inv_freq", _no_scaling),
    "no llama3 scaling, short trained length": ("llama3 short, 600 tokens", right, "rope_inv_freq", _no_scaling),
    "llama3 factor 8 for 32": ("llama3, 600 tokens", right, "rope_inv_freq", _factor_8),
    "llama3 slows the fast pairs": ("llama3, 600 tokens", right, "rope_inv_freq", _bands_swapped),
    "no linear scaling": ("linear", right, "rope_inv_freq", _no_scaling),
    "neighbours paired instead of halves": ("gqa", right, "apply_rope", _neighbours_paired),
    "neighbours paired, angles of halves": ("gqa", right, "apply_rope", _mixed_layout),
    "sine sign flipped": ("gqa", right, "apply_rope", _sine_sign_flipped),
    "no rotation": ("gqa", right, "apply_rope", _no_rotation),
    "v rotated too": ("gqa", GroupedQueryAttention, "project", _values_rotated),
    "k not rotated": ("gqa", GroupedQueryAttention, "project", _keys_not_rotated),
    "scaled by dim, not head_dim": ("gqa", GroupedQueryAttention, "project", _scaled_by_dim),
    "scores not scaled": ("gqa", GroupedQueryAttention, "project", _not_scaled),
    "k and v swapped": ("gqa", GroupedQueryAttention, "project", _keys_and_values_swapped),
    "no gradient through the keys": ("gqa", GroupedQueryAttention, "project", _keys_without_gradient),
    "repeat for repeat_interleave": ("gqa", right, "repeat_kv", _repeat_in_turn),
    "heads not transposed back": ("gqa", GroupedQueryAttention, "forward", _heads_not_put_back),
    "no mask": ("gqa", Llama, "rotation_and_mask", _mask(lambda query, key: key >= 0 * query)),
    "mask off by one: sees the next token": ("gqa", Llama, "rotation_and_mask", _mask(lambda q, k: k <= q + 1)),
    "mask off by one: does not see itself": (
        "gqa", Llama, "rotation_and_mask", _mask(lambda q, k: (k < q) | (q == 0) & (k == 0)),
    ),
    "square mask on a cached chunk": ("gqa, cached 5+4+7", Llama, "rotation_and_mask", _square_mask),
    "no mask inside a cached chunk": ("gqa, cached 5+4+7", Llama, "rotation_and_mask", _chunk_sees_all),
    "positions not offset by the cache": ("gqa, cached one by one", Llama, "rotation_and_mask", _positions_restart),
    "positions one late behind the cache": ("gqa, cached one by one", Llama, "rotation_and_mask", _positions_one_late),
    "padding seen": ("left-padded", Llama, "rotation_and_mask", _padding_seen),
    "padding seen from the cache": ("left-padded, cached 5+4+7", Llama, "rotation_and_mask", _padding_seen),
    "every row padded like the first": ("left-padded", Llama, "rotation_and_mask", _padding_of_the_first_row),
    "gate and up swapped": ("gqa", SwiGLU, "forward", _gate_and_up_swapped),
    "GELU for SiLU": ("gqa", SwiGLU, "forward", _gelu_for_silu),
    "no gate": ("gqa", SwiGLU, "forward", _no_gate),
    "post-norm instead of pre-norm": ("gqa", TransformerBlock, "forward", _post_norm),
    "residual taken from the normalised x": ("gqa", TransformerBlock, "forward", _residual_from_normalised),
    "feed-forward beside attention": ("gqa", TransformerBlock, "forward", _ffn_beside_attention),
    "the two norms exchanged": ("gqa", TransformerBlock, "forward", _norms_exchanged),
    "no final norm": ("gqa", Llama, "_logits", _no_final_norm),
    "tied by copy": ("tied", Llama, "__init__", _tied_by_copy),
}  # fmt: skip


@contextmanager
def wrong_model(name: str):
    """Inside this block `helpers.model` makes the named mistake."""
    _, owner, attribute, replacement = WRONG_MODELS[name]
    with patch.object(owner, attribute, replacement):
        yield
