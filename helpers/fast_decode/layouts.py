"""Ways to store a model's matrices for a product with one vector, and the parts that use them."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from helpers.model import GroupedQueryAttention, RMSNorm, SwiGLU, apply_rope

LAYOUTS = {  # how a matrix may be stored, by what its numbers are; what is not listed is stored as rows
    torch.float32: ("rows", "columns", "strips of 32", "strips of 128"),
    torch.bfloat16: ("rows", "rows, PyTorch's loop"),
}


def lay_out(model, linear):
    """A copy of the model that shares its vectors, with linear(*matrices) wherever matrices are read at once."""
    prepared = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})  # shares all weights
    for block in prepared.layers:
        block.attention = _FusedAttention(block.attention, linear)
        block.feed_forward = _FusedSwiGLU(block.feed_forward, linear)
        if model.lm_head.weight.dtype == torch.float32:  # in 16 bits it would round in another order
            block.attention_norm.__class__ = block.ffn_norm.__class__ = _FusedNorm
    prepared.lm_head = linear(model.lm_head.weight)
    return prepared


def shape_of(group):
    """A name for the shape of matrices that are read at once."""
    return f"{group[0].shape[1]} -> {sum(map(len, group))}"


def full_name(dtype, layout):
    """A name for numbers in a layout: "float32 columns"."""
    return f"{str(dtype).removeprefix('torch.')} {layout}"


class LaidOutLinear(nn.Module):
    """The product with a matrix, or with several below each other, stored in one layout.

    Args:
        group: the matrices, (n_out, n_in) each.
        dtype: what their numbers are stored as; int8 gets a scale for each row.
        layout: "rows" as they are; "columns" the transposed; "strips of n" cut into strips of n outputs, whose sums
            stay in a core's registers.
        times: what was measured, {name: µs}; for the repr.
    """

    def __init__(self, group, dtype, layout, times=()):
        super().__init__()
        matrix, scale = torch.cat(tuple(group)), None
        self.layout, self.n_out = layout, len(matrix)
        self.times = {way: t for way, t in dict(times).items() if way.startswith(full_name(dtype, ""))}
        if dtype == torch.int8:
            matrix = matrix.float()  # in bfloat16 a quotient may round to 128, which int8 does not have
            scale = (matrix.abs().amax(dim=1).clamp(min=1e-30) / 127).bfloat16()
            matrix = (matrix / scale[:, None]).round().clamp(-127, 127)
        matrix = matrix.to(dtype)
        if layout == "columns":
            matrix = matrix.T.contiguous()
        elif layout.startswith("strips"):
            width = int(layout.split()[-1])
            padding = matrix.new_zeros(-len(matrix) % width, matrix.shape[1])
            matrix = torch.cat((matrix, padding)).unflatten(0, (-1, width)).transpose(1, 2).contiguous()
        self.register_buffer("weight", matrix)
        self.register_buffer("scale", scale)

    def extra_repr(self):
        times = ", ".join(f"{way} {t:g} µs" for way, t in sorted(self.times.items(), key=lambda item: item[1]))
        return f"{self.layout}; measured: {times}" if times else self.layout

    def forward(self, x):
        if self.layout == "columns":
            return x @ self.weight
        if self.weight.ndim == 3:  # each core gets its strips, for a single vector, too
            tokens = x.reshape(-1, x.shape[-1])
            product = torch.bmm(tokens.expand(len(self.weight), -1, -1), self.weight)  # (n_strips, tokens, width)
            return product.transpose(0, 1).reshape(*x.shape[:-1], -1)[..., : self.n_out]
        if x.numel() > x.shape[-1]:  # many tokens
            dtype = self.weight.dtype if self.scale is None else x.dtype
            product = F.linear(x.to(dtype), self.weight.to(dtype))
        elif torch.compiler.is_compiling():  # becomes a loop that widens each weight when it is read
            product = (self.weight.to(x.dtype) * x.flatten()).sum(dim=-1)
        elif self.scale is None:
            product = _matrix_vector(self.weight, x.flatten().to(self.weight.dtype), self.layout == "rows")
        else:  # torch has no public name for it; it multiplies by the scale, too
            product = torch._weight_int8pack_mm(x.reshape(1, -1).bfloat16(), self.weight, self.scale)
            return product.to(x.dtype).view(*x.shape[:-1], -1)
        product = product.to(x.dtype).view(*x.shape[:-1], -1)
        return product if self.scale is None else product * self.scale.to(x.dtype)


def _matrix_vector(matrix, vector, library):
    # By oneDNN, or by PyTorch's own loop: for one bfloat16 vector now this, now that takes half the time.
    enabled, torch.backends.mkldnn.enabled = torch.backends.mkldnn.enabled, library
    try:
        return torch.mv(matrix, vector)
    finally:
        torch.backends.mkldnn.enabled = enabled


class _FusedNorm(RMSNorm):
    def forward(self, x):  # one call of PyTorch's instead of eight
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class _FusedAttention(GroupedQueryAttention):
    def __init__(self, attention, linear):
        nn.Module.__init__(self)
        self.head_dim, self.n_rep = attention.head_dim, attention.n_rep
        self.n_kv_heads = attention.k_proj.out_features // self.head_dim
        self.qkv_proj = linear(attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight)
        self.o_proj = linear(attention.o_proj.weight)

    def rotated_qkv(self, x, cos, sin):
        heads = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (B, H + 2K, T, h)
        q_and_k, v = heads[:, : -self.n_kv_heads], heads[:, -self.n_kv_heads :]
        turned = apply_rope(q_and_k, cos, sin)
        return turned[:, : -self.n_kv_heads], turned[:, -self.n_kv_heads :], v


class _FusedSwiGLU(SwiGLU):
    def __init__(self, feed_forward, linear):
        nn.Module.__init__(self)
        self.gate_up_proj = linear(feed_forward.gate_proj.weight, feed_forward.up_proj.weight)
        self.down_proj = linear(feed_forward.down_proj.weight)

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)
