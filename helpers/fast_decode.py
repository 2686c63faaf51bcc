"""The same model with its weights laid out for steps of one token: joined matrices, all cores, fewer bytes."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

from helpers.families import require_plain
from helpers.model import GroupedQueryAttention, Llama, RMSNorm, SwiGLU, apply_rope


def prepare_for_decoding(model: Llama, weights: str | None = None, compiled: bool = False) -> Llama:
    """The same function with its matrices laid out for steps of one token on the CPU.

    Use the result only to generate text. Its matrices are copies; the embedding is shared with the model. So prepare
    again after you have trained, moved or cast the model, and do not move or cast the result. A model on an
    accelerator is returned as it is.

    Args:
        model: the LLaMA; it stays as it is.
        weights: None keeps the precision and the results (rounding apart); "bfloat16" takes 2 bytes per weight, "int8"
            1 byte and one scale per output row.
        compiled: steps of one token run through torch.compile, which joins their small operations into loops. The
            first step then takes up to some minutes, and an error of torch's if there is no C++ compiler.

    Returns:
        a LLaMA of the same config, with the same forward, cache and embedding.

    Raises:
        ValueError: if weights is another word, the model is prepared already, or a relative; or if it is to be
            compiled and the path to torch has a space.

    Source:
        int8 with a scale per row: LLM.int8, arXiv 2208.07339, section 2; notebook 07.
    """
    if weights not in (None, "bfloat16", "int8"):
        raise ValueError(f"weights={weights!r} is not known: use None, 'bfloat16' or 'int8'.")
    if isinstance(model.lm_head, _StripLinear | _RowLinear):
        raise ValueError("this model is prepared already: pass the one that it was made from.")
    require_plain(model, "prepare_for_decoding", "generate with the model itself")
    first = model.tok_embeddings.weight
    if first.device.type != "cpu":
        return model  # an accelerator already uses all of its cores for a single vector
    if compiled and " " in torch.__path__[0]:
        raise ValueError(
            f"torch is in {torch.__path__[0]!r}: torch.compile cannot link where a path has a space. Move it, or "
            "leave out compiled=True."
        )
    dtype = getattr(torch, weights) if weights else first.dtype

    def linear(*matrices):
        strips = dtype == torch.float32 and not compiled and torch.backends.mkl.is_available()
        return _StripLinear(matrices) if strips else _RowLinear(matrices, dtype)

    with torch.no_grad():
        prepared = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})  # shares all weights
        for block in prepared.layers:
            block.attention = _FusedAttention(block.attention, linear)
            block.feed_forward = _FusedSwiGLU(block.feed_forward, linear)
            if first.dtype == torch.float32 and not compiled:  # in 16 bits it would round in another order
                block.attention_norm, block.ffn_norm = map(_LengthNorm, (block.attention_norm, block.ffn_norm))
        prepared.lm_head = linear(model.lm_head.weight)
    if compiled:
        prepared.check_call = torch.compiler.disable(prepared.check_call)
        once = {"realize_opcount_threshold": 2, "realize_reads_threshold": 1}  # a product's input: not for every row
        whole, step = prepared.forward, torch.compile(prepared.forward, dynamic=True, options=once)

        def forward(tokens, *more, **named):
            return (step if tokens.shape[1] == 1 else whole)(tokens, *more, **named)

        prepared.forward = forward
    return prepared


class _StripLinear(nn.Module):
    # The matrix is stored as MKL reads it: cut into strips of 32 outputs, whose sums stay in a core's registers. A
    # batched product gives each core its strips, for a single vector too, which PyTorch otherwise leaves to one core.
    def __init__(self, matrices):
        super().__init__()
        self.n_out = sum(map(len, matrices))
        padding = matrices[0].new_zeros(-self.n_out % 32, matrices[0].shape[1])
        strips = torch.cat((*matrices, padding)).unflatten(0, (-1, 32)).transpose(1, 2)
        self.register_buffer("strips", strips.contiguous())  # (n_strips, in, 32)

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        product = torch.bmm(tokens.expand(len(self.strips), -1, -1), self.strips)  # (n_strips, tokens, 32)
        return product.transpose(0, 1).reshape(*x.shape[:-1], -1)[..., : self.n_out]


class _RowLinear(nn.Module):
    # A row per output, for fewer bytes per weight (int8 has one scale per row) and for compiling.
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
        if x.numel() > x.shape[-1]:  # many tokens
            dtype = self.weight.dtype if self.scale is None else x.dtype
            product = F.linear(x.to(dtype), self.weight.to(dtype))
        elif torch.compiler.is_compiling():  # becomes a loop that widens each weight when it is read
            product = (self.weight.to(x.dtype) * x.flatten()).sum(dim=-1)
        elif self.scale is None:
            product = _matrix_vector(self.weight, x.flatten().to(self.weight.dtype))
        else:  # torch has no public name for it; it multiplies by the scale, too
            product = torch._weight_int8pack_mm(x.reshape(1, -1).bfloat16(), self.weight, self.scale)
            return product.to(x.dtype).view(*x.shape[:-1], -1)
        product = product.to(x.dtype).view(*x.shape[:-1], -1)
        return product if self.scale is None else product * self.scale.to(x.dtype)


def _matrix_vector(matrix, vector):
    # For one bfloat16 vector oneDNN takes twice as long as PyTorch's own loop.
    enabled, torch.backends.mkldnn.enabled = torch.backends.mkldnn.enabled, False
    try:
        return torch.mv(matrix, vector)
    finally:
        torch.backends.mkldnn.enabled = enabled


class _LengthNorm(RMSNorm):
    # The root mean square is the length over sqrt(D); hypot adds eps inside the root. Four calls instead of eight.
    def __init__(self, norm):
        nn.Module.__init__(self)
        root = math.sqrt(len(norm.weight))
        self.register_buffer("floor", torch.tensor(math.sqrt(norm.eps) * root))
        self.register_buffer("gain", norm.weight * root)

    def forward(self, x):
        return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.floor) * self.gain


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
