"""Bugs that ports of these families had, to be put into a right model; notebook 08."""

import math
from functools import partial

from torch.nn import functional as F

from helpers.model import GroupedQueryAttention, apply_rope


def _attentions(model, change):
    for block in model.layers:
        block.attention.rotated_qkv = partial(change, block.attention)


def _bias_after_the_turn(attention, x, cos, sin):
    q, k, v = attention.heads(x)
    b, c = (proj.bias.unflatten(0, (-1, 1, attention.head_dim)) for proj in (attention.q_proj, attention.k_proj))
    return apply_rope(q - b, cos, sin) + b, apply_rope(k - c, cos, sin) + c, v


def _norm_after_the_turn(attention, x, cos, sin):
    q, k, v = GroupedQueryAttention.heads(attention, x)
    return attention.q_norm(apply_rope(q, cos, sin)), attention.k_norm(apply_rope(k, cos, sin)), v


def _window_lost(model):
    right = model.rotation_and_mask
    model.rotation_and_mask = lambda n, *more: (*right(n, *more)[:2], [None] * 9) if n == 1 else right(n, *more)


def _erf_gelu(model):
    for part in (block.feed_forward for block in model.layers):
        part.forward = lambda x, part=part: part.down_proj(F.gelu(part.gate_proj(x)) * part.up_proj(x))


def _no_clamp(model):
    for expert in (expert for block in model.layers for expert in block.feed_forward.experts):
        expert.limit = math.inf


BUGS = {  # name: the family, and what is done to a model of it, with windows of 6
    # mlx-lm 390, August 2025; mistral-inference 60, 2023
    "window one too wide": ("mistral", lambda model: setattr(model, "windows", [7, 7, 7])),
    # ROCm hip-ep 144, April 2026: gpt-oss saw old keys while it wrote
    "window lost when T = 1": ("mistral", _window_lost),
    # ExecuTorch 22043, August 2026
    "every layer turns": ("smollm3", lambda model: model.layer_inv_freq.copy_(model.layer_inv_freq[:1].clone())),
    "bias after the turn": ("qwen2", lambda model: _attentions(model, _bias_after_the_turn)),
    # torchtune 2809, June 2025
    "norm after the turn": ("qwen3", lambda model: _attentions(model, _norm_after_the_turn)),
    # vLLM 21863, July 2025
    "all layers local": ("gemma3_text", lambda model: setattr(model, "windows", [6, 6, 6])),
    # gemma_pytorch 37, March 2024; Megatron-Bridge 4661, 2026
    "GELU by erf": ("gemma3_text", _erf_gelu),
    # transformers 31775, July 2024; Megatron-Bridge 4875, 2026
    "the other layers local": ("gpt_oss", lambda model: setattr(model, "windows", [None, 6, None])),
    "clamp forgotten": ("gpt_oss", _no_clamp),
}
