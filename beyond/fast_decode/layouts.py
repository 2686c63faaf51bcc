"""Ways to store a model's matrices for a product with one vector, and the parts that use them."""

import copy
from functools import cache

import torch
from torch import nn
from torch.nn import functional as F

from beyond.fast_decode.int4 import WIDENED, Int4Matrix, needs_gradient, of_strips
from helpers.model import GroupedQueryAttention, RMSNorm, SwiGLU, apply_rope

LAYOUTS = {  # how a matrix may be stored, by what its numbers are; what is not listed is stored as rows
    torch.float32: ("rows", "columns", "strips of 32", "strips of 128", "packed"),
    torch.float16: ("rows", "packed"),
    torch.bfloat16: ("rows", "bags of 128"),
    torch.int8: ("rows", "bags of 192"),
    torch.int4: ("packed",),
}


def lay_out(model, linear):
    """A copy of the model that shares its vectors, with linear(*matrices) wherever matrices are read at once."""
    prepared = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})  # shares all weights
    for block in prepared.layers:
        block.attention = FusedAttention(block.attention, linear)
        block.feed_forward = FusedSwiGLU(block.feed_forward, linear)
        if model.lm_head.weight.dtype == torch.float32:  # in 16 bits it would round in another order
            block.attention_norm.__class__ = block.ffn_norm.__class__ = FusedNorm
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
        dtype: what their numbers are stored as; int8 gets a scale for each row, in bags a scale and an offset for
            each input of each strip.
        layout: "rows" as they are; "columns" the transposed; "strips of n" cut into strips of n outputs, whose sums
            stay in a core's registers; "bags of n" the same strips, each summed as a bag of words: input i is a word,
            row i of the strip its vector, x_i its weight; "packed" in a library's own order, float32 oneDNN's, float16
            FBGEMM's, int4 PyTorch's.
    """

    def __init__(self, group, dtype, layout):
        super().__init__()
        matrix, scale = torch.cat(tuple(group)), None
        self.dtype, self.layout = dtype, layout
        self.n_out, self.n_in = matrix.shape
        self.in_bags = layout.startswith("bags")
        self.width = int(layout.split()[-1]) if " of " in layout else 0  # outputs of a strip; 0: nothing is cut
        if self.width:
            padding = matrix.new_zeros(-len(matrix) % self.width, self.n_in)
            matrix = torch.cat((matrix, padding)).unflatten(0, (-1, self.width)).transpose(1, 2).contiguous()
        if self.in_bags:
            matrix = matrix.flatten(0, 1)  # (n_strips * n_in, width)
            words = torch.arange(len(matrix), dtype=torch.int32)
            self.register_buffer("words", words)
            self.register_buffer("starts", words[:: self.n_in].clone())
        if dtype == torch.int8 and self.in_bags:
            matrix = to_bytes(matrix)
        elif dtype == torch.int8:
            matrix = matrix.float()  # in bfloat16 a quotient may round to 128, which int8 does not have
            scale = (matrix.abs().amax(dim=1).clamp(min=1e-30) / 127).bfloat16()
            matrix = (matrix / scale[:, None]).round().clamp(-127, 127).to(dtype)
        elif layout == "packed":
            matrix = Int4Matrix(matrix.detach()) if dtype == torch.int4 else pack(matrix.to(dtype))
        else:
            matrix = (matrix.T.contiguous() if layout == "columns" else matrix).to(dtype)
        if isinstance(matrix, torch.Tensor):
            self.register_buffer("weight", matrix)
        else:
            self.weight = matrix  # FBGEMM's is no tensor
        self.packed = not isinstance(matrix, torch.Tensor) or matrix.is_mkldnn
        self.register_buffer("scale", scale)

    def extra_repr(self):
        return f"{self.n_in} -> {self.n_out}, {self.layout}"

    def forward(self, x):
        tokens = x.reshape(-1, self.n_in)
        few = 4 if self.in_bags else 1  # up to so many vectors, one product for each is faster
        if self.scale is not None and self.n_out % 4 and self.n_in % 16:
            few = 0  # for such sizes PyTorch 2.13's product with bytes ended the process on a CPU with AVX-512
        if len(tokens) <= few and not needs_gradient(x):
            product = torch.stack([self.of_vector(token) for token in tokens])
        elif self.packed:
            product = product_with(self.weight, tokens).to(x.dtype)
        elif self.weight.dtype in (torch.float32, torch.float64):
            product = self.of_many(tokens.to(self.weight.dtype))
        else:
            product = self.of_many_widened(tokens).to(x.dtype)
        return product.view(*x.shape[:-1], -1)

    def of_many(self, tokens):
        """The product with vectors (n, n_in) of the matrix's dtype, (n, n_out)."""
        if not self.width:
            return tokens @ self.weight if self.layout == "columns" else F.linear(tokens, self.weight)
        if len(tokens) <= 128:
            return of_strips(tokens, self.weight)[:, : self.n_out]
        whole = self.weight.transpose(0, 1).reshape(self.n_in, -1)  # takes less time than it saves
        return (tokens @ whole)[:, : self.n_out]

    def of_many_widened(self, tokens):
        """The same for a narrow matrix, widened in parts which a core's cache holds; bfloat16 may stay as it is."""
        narrow = self.weight.dtype
        keeps_bfloat16 = narrow == torch.bfloat16 and multiplies_bfloat16()
        wide = narrow if keeps_bfloat16 else torch.promote_types(tokens.dtype, torch.float32)
        multiply, tokens, products = of_strips if self.width else F.linear, tokens.to(wide), []
        matrix = self.weight.view(-1, self.n_in, self.weight.shape[1]) if self.width else self.weight
        for part in matrix.split(max(1, WIDENED // (self.n_in * max(1, self.width)))):
            if narrow == torch.uint8:
                part = from_bytes(part.flatten(0, 1)).view(len(part), self.n_in, -1)
            products.append(multiply(tokens, part.to(wide)))
        product = torch.cat(products, dim=1)[:, : self.n_out]
        return product if self.scale is None else product * self.scale

    def of_vector(self, x):
        """The product with one vector (n_in,), (n_out,) of its dtype."""
        if self.in_bags:
            sums = bags(self.weight, self.words, self.starts, x)
        elif self.scale is not None:  # torch has no public name for it; it multiplies by the scale, too
            sums = torch._weight_int8pack_mm(x.view(1, -1).bfloat16(), self.weight, self.scale)
        elif self.width:
            sums = torch.bmm(x.expand(len(self.weight), 1, -1), self.weight)
        elif self.packed:
            sums = product_with(self.weight, x.view(1, -1))
        else:
            matrix = self.weight.T if self.layout == "columns" else self.weight
            sums = torch.mv(matrix, x.to(matrix.dtype))
        return sums.view(-1)[: self.n_out].to(x.dtype)

    def __deepcopy__(self, memo):
        if isinstance(self.weight, torch.Tensor):
            memo[id(self.weight)] = self.weight.clone()  # `deepcopy` does not know packed tensors
        memo[id(self)] = copied = self.__new__(type(self))
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied


@cache
def multiplies_bfloat16():
    """Whether this processor has products of bfloat16; without them PyTorch's take ten times as long as float32's."""
    has = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of PyTorch do not say
    return any(has.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def pack(matrix):
    """The matrix in an order that has no public name: float32 in oneDNN's, float16 in FBGEMM's; else as it is."""
    try:
        if matrix.dtype == torch.float16:
            return torch.ops.quantized.linear_prepack_fp16(matrix.detach().float(), None)
        return torch.ops.mkldnn._reorder_linear_weight(matrix.detach(), None)
    except (AttributeError, RuntimeError):  # PyTorch was built without it
        return matrix


def product_with(packed, x):
    """The product of a packed matrix (n_out, n_in) with x (n, n_in): (n, n_out), in float32 if it is not int4."""
    if isinstance(packed, Int4Matrix):
        return packed.product(x)
    is_tensor, x = isinstance(packed, torch.Tensor), x.float()
    if needs_gradient(x):  # a packed product gives x none
        return F.linear(x, packed.to_dense() if is_tensor else packed.unpack()[0])
    if is_tensor:
        return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return torch.ops.quantized.linear_dynamic_fp16(x, packed)


def bags(rows, words, starts, x):
    """Sums of rows, (bags, width): each bag holds len(x) of them, weighed by x. Rows of bytes are widened first."""
    weigh = x.expand(len(starts), -1).reshape(-1)
    if rows.dtype != torch.uint8:
        return F.embedding_bag(words, rows, starts, mode="sum", per_sample_weights=weigh.to(rows.dtype))
    try:  # FBGEMM's loop, which has no public name
        summed = torch.ops.quantized.embedding_bag_byte_rowwise_offsets
    except AttributeError:
        return F.embedding_bag(words, from_bytes(rows), starts, mode="sum", per_sample_weights=weigh.float())
    return summed(rows, words, starts, False, 0, False, weigh.float(), None, False)


def to_bytes(rows):
    """Each row in 256 steps from its least to its largest number; the last eight bytes are the step and the least."""
    least, most = rows.float().aminmax(dim=1, keepdim=True)
    step = ((most - least) / 255).clamp(min=1e-30)
    numbers = ((rows.float() - least) / step).round().to(torch.uint8)
    return torch.cat((numbers, torch.cat((step, least), dim=1).view(torch.uint8)), dim=1)


def from_bytes(rows):
    """The rows that `to_bytes` stored, float32."""
    try:  # FBGEMM's loop, which has no public name, takes a fifth of the time
        return torch.ops.quantized.embedding_bag_byte_unpack(rows)
    except AttributeError:
        step, least = rows[:, -8:].contiguous().view(torch.float32).T
        return rows[:, :-8] * step[:, None] + least[:, None]


class FusedNorm(RMSNorm):  # in one call of PyTorch instead of eight
    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class FusedAttention(GroupedQueryAttention):  # reads the matrices of queries, keys and values at once
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


class FusedSwiGLU(SwiGLU):  # reads the matrices of gate and up at once
    def __init__(self, feed_forward, linear):
        nn.Module.__init__(self)
        self.gate_up_proj = linear(feed_forward.gate_proj.weight, feed_forward.up_proj.weight)
        self.down_proj = linear(feed_forward.down_proj.weight)

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)
