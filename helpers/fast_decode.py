"""The same model with its weights laid out for steps of one token: joined matrices, all cores, fewer bytes."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from helpers.model import GroupedQueryAttention, Llama, RMSNorm, SwiGLU, apply_rope
from helpers.relatives import require_plain


def prepare_for_decoding(model: Llama, weights: str | None = None) -> Llama:
    """The same function with its matrices laid out for steps of one token on the CPU.

    Use the result only to generate text. Its matrices are copies; embedding and norms are shared with the model. So
    prepare again after you have trained, moved or cast the model, and do not move or cast the result. A model on an
    accelerator is returned as it is.

    Args:
        model: the LLaMA; it stays as it is.
        weights: None keeps the precision and the results (rounding apart); "bfloat16" takes 2 bytes per weight, "int8"
            1 byte and one scale per output row.

    Returns:
        a LLaMA of the same config, with the same forward, cache and embedding.

    Raises:
        ValueError: if weights is another word, the model is prepared already, or a relative.

    Source:
        int8 with a scale per row: LLM.int8, arXiv 2208.07339, section 2; notebook 07.
    """
    if weights not in (None, "bfloat16", "int8"):
        raise ValueError(f"weights={weights!r} is not known: use None, 'bfloat16' or 'int8'.")
    if isinstance(model.lm_head, _SplitLinear | _SmallLinear):
        raise ValueError("this model is prepared already: pass the one that it was made from.")
    require_plain(model, "prepare_for_decoding", "generate with the model itself")
    first = model.tok_embeddings.weight
    if first.device.type != "cpu":
        return model  # an accelerator already uses all of its cores for a single vector
    dtype = getattr(torch, weights) if weights else first.dtype

    def linear(*matrices):
        return _SplitLinear(matrices) if dtype == torch.float32 else _SmallLinear(matrices, dtype)

    with torch.no_grad():
        prepared = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})  # shares all weights
        for block in prepared.layers:
            block.attention = _FusedAttention(block.attention, linear)
            block.feed_forward = _FusedSwiGLU(block.feed_forward, linear)
            if first.dtype == torch.float32:  # in 16 bits the kernel rounds in another order
                block.attention_norm, block.ffn_norm = map(_FusedNorm, (block.attention_norm, block.ffn_norm))
        prepared.lm_head = linear(model.lm_head.weight)
    return prepared


class _SplitLinear(nn.Module):
    # PyTorch multiplies a matrix with a single vector on one core. So the matrix, stored (in, out), is cut along `in`
    # into a block per thread: a batched product gives each block a core, and the parts are added.
    def __init__(self, matrices):
        super().__init__()
        matrix = torch.cat(matrices).T
        n_blocks = max(n for n in range(1, torch.get_num_threads() + 1) if len(matrix) % n == 0)
        self.register_buffer("blocks", matrix.contiguous().unflatten(0, (n_blocks, -1)))

    def forward(self, x):
        if x.numel() > x.shape[-1]:  # many tokens: a plain product uses all cores
            return x @ self.blocks.flatten(0, 1)
        parts = x.reshape(len(self.blocks), 1, -1) @ self.blocks  # (n_blocks, 1, out)
        return parts.sum(dim=0).view(*x.shape[:-1], -1)


class _SmallLinear(nn.Module):
    # Fewer bytes per weight: bfloat16, or int8 with one scale per output row.
    def __init__(self, matrices, dtype):
        super().__init__()
        matrix, scale = torch.cat(matrices), None
        if dtype == torch.int8:
            matrix = matrix.float()  # in bfloat16 a quotient may round to 128, which int8 does not have
            scale = (matrix.abs().amax(dim=1).clamp(min=1e-30) / 127).bfloat16()
            matrix = (matrix / scale[:, None]).round().clamp(-127, 127)
        self.register_buffer("weight", matrix.to(dtype))
        self.register_buffer("scale", scale)

    def forward(self, x):
        if self.scale is None:
            return F.linear(x.to(self.weight.dtype), self.weight).to(x.dtype)
        if x.numel() > x.shape[-1]:
            return F.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)
        row = x.reshape(1, -1).bfloat16()
        product = torch._weight_int8pack_mm(row, self.weight, self.scale)  # torch has no public name for it
        return product.to(x.dtype).view(*x.shape[:-1], -1)


class _FusedNorm(RMSNorm):
    # PyTorch's own norm: one call instead of six.
    def __init__(self, norm):
        nn.Module.__init__(self)
        self.eps, self.weight = norm.eps, norm.weight

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class _FusedAttention(GroupedQueryAttention):
    def __init__(self, attention, linear):
        nn.Module.__init__(self)
        self.head_dim, self.n_rep = attention.head_dim, attention.n_rep
        self.n_kv_heads = attention.k_proj.out_features // self.head_dim
        self.qkv_proj = linear(attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight)
        self.o_proj = linear(attention.o_proj.weight)

    def project(self, x, cos, sin):
        heads = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (B, H + 2K, T, h)
        q_and_k, v = heads[:, : -self.n_kv_heads], heads[:, -self.n_kv_heads :]
        turned = apply_rope(q_and_k, cos, sin)
        return turned[:, : -self.n_kv_heads], turned[:, -self.n_kv_heads :], v

    def forward(self, x, cos, sin, visible=None, cache=None, layer=0):
        if x.shape[1] > 1 or visible is not None:
            return super().forward(x, cos, sin, visible, cache, layer)
        q, k, v = self.project(x, cos, sin)
        if cache is not None:
            k, v = cache.update(layer, k, v)
        q = q.view(len(q), self.n_kv_heads, self.n_rep, -1)  # query heads that share a key head become rows: no copies
        mixed = F.scaled_dot_product_attention(q, k, v)  # (B, K, R, h)
        return self.o_proj(mixed.flatten(1)[:, None])


class _FusedSwiGLU(SwiGLU):
    def __init__(self, feed_forward, linear):
        nn.Module.__init__(self)
        self.gate_up_proj = linear(feed_forward.gate_proj.weight, feed_forward.up_proj.weight)
        self.down_proj = linear(feed_forward.down_proj.weight)

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)
