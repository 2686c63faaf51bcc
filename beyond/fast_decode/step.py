"""One token through a prepared float32 model: the sums of helpers.model on flat vectors, with little around them.

Between the products of `Llama.forward` stand some 20 small operations a block, a third of a step's time on a small
model. Here a norm is a dot product, RoPE three operations, and no module is called.
"""

import torch
from torch.nn import functional as F

from beyond.fast_decode.layouts import FusedAttention, FusedNorm, FusedSwiGLU, LaidOutLinear
from helpers.model import RMSNorm, TransformerBlock

FORWARD = {kind: kind.forward for kind in (TransformerBlock, FusedAttention, FusedSwiGLU, FusedNorm, RMSNorm,
                                           LaidOutLinear)}  # fmt: skip


def is_untouched(model) -> bool:
    """Whether nobody looks at a part, or changes one, on its way: no hook, and no forward but its own."""
    parts = model.modules()
    return all(kind.forward is own for kind, own in FORWARD.items()) and not any(
        part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part) for part in parts
    )


def logits_after(model, token: int, cache) -> torch.Tensor:
    """Logits (V,) of what follows `token`, which stands at position cache.length; its key and value are written."""
    at, n_kv, h, eps = cache.length, model.config.n_kv_heads, model.config.head_dim, model.config.norm_eps
    angles = at * model.inv_freq
    cos, sin = angles.cos(), angles.sin()
    sin = torch.stack((-sin, sin))  # in a pair (a, b), b gives -sin to a, and a gives sin to b
    x = model.tok_embeddings.weight[token]
    for layer, block in enumerate(model.layers):
        attention, feed_forward = block.attention, block.feed_forward
        heads = attention.qkv_proj.of_vector(_normed(x, block.attention_norm.weight, eps))
        pairs, v = heads[: -n_kv * h].view(-1, 2, h // 2), heads[-n_kv * h :].view(n_kv, h)
        turned = torch.addcmul(pairs * cos, pairs.flip(1), sin).view(-1, h)  # (H + K, h)
        keys, values = cache.k[layer, :, :, : at + 1], cache.v[layer, :, :, : at + 1]
        keys[0, :, at], values[0, :, at] = turned[-n_kv:], v
        rows = turned[:-n_kv].view(1, n_kv, -1, h)  # query heads that share a key head
        mixed = F.scaled_dot_product_attention(rows, keys, values)
        x = x + attention.o_proj.of_vector(mixed.reshape(-1))
        gate, up = feed_forward.gate_up_proj.of_vector(_normed(x, block.ffn_norm.weight, eps)).chunk(2)
        x = x + feed_forward.down_proj.of_vector(F.silu(gate) * up)
    return model.lm_head.of_vector(_normed(x, model.final_norm.weight, eps))


def _normed(x, weight, eps):
    return x * (torch.dot(x, x).item() / len(x) + eps) ** -0.5 * weight
