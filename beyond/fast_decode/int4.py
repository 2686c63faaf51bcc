"""A matrix in 4 bits a weight, in the order that PyTorch's product on the CPU reads; none of it has a public name.

Source: groups with a scale each, QLoRA, arXiv 2305.14314, section 2; the order, PyTorch's cpu/int4mm_kernel.cpp.
"""

from functools import cache

import torch
from torch.nn import functional as F

GROUP = 32  # inputs of a row, which share a scale and an offset
BLOCK = 64  # the number of rows is a multiple of it
FEW = 64  # tokens; for more the weights are widened first
WIDENED = 2**19  # so many weights at once, here and in layouts.py


class Int4Matrix:
    """A matrix (n_out, n_in) in codes from 0 to 15: a weight is (code - 8) * scale + offset."""

    def __init__(self, matrix):
        self.n_out, self.n_in = matrix.shape
        groups = F.pad(matrix.float(), (0, -self.n_in % GROUP, 0, -self.n_out % BLOCK)).unflatten(1, (-1, GROUP))
        least, most = groups.aminmax(dim=2, keepdim=True)
        scale = ((most - least) / 15).clamp(min=1e-30).bfloat16()
        offset = (least + 8 * scale).bfloat16()
        codes = ((groups - offset) / scale + 8).round().clamp(0, 15).flatten(1)
        self.codes = torch._convert_weight_to_int4pack_for_cpu(codes.int(), 1)  # two in a byte
        self.scales = torch.cat((scale, offset), dim=2).transpose(0, 1).contiguous()  # (n_in / 32, n_out, 2)

    @property
    def nbytes(self):
        return self.codes.nbytes + self.scales.nbytes

    def product(self, x):
        """The product with x (n, n_in), (n, n_out): bfloat16 for few tokens, float32 for many or with a gradient."""
        if len(self.scales) * GROUP > self.n_in:
            x = F.pad(x, (0, -self.n_in % GROUP))
        if (needs_gradient(x) or len(x) > FEW) and (order := _order()):
            product = torch.cat([of_strips(x.float(), strips) for strips in self._strips(*order)], dim=1)
        elif needs_gradient(x):
            product = x.float() @ self._packed_product(torch.eye(x.shape[1])).float()
        else:
            product = self._packed_product(x)
        return product[:, : self.n_out]

    def _packed_product(self, x):
        return torch._weight_int4pack_mm_for_cpu(x.bfloat16(), self.codes, GROUP, self.scales)

    def _strips(self, rows, join):
        # The whole matrix in strips (n, n_in, rows), some at a time, in float32; rows and join are those of _order.
        codes = self.codes.view(-1, len(self.scales), GROUP, rows // 2)
        size, offset = self.scales.float().unflatten(1, (-1, 1, rows)).permute(4, 1, 0, 2, 3).contiguous()
        n = max(1, WIDENED // (rows * GROUP * len(self.scales)))  # strips; size is (n_strips, n_in / 32, 1, rows)
        for part, times, plus in zip(codes.split(n), size.split(n), (offset - 8 * size).split(n), strict=True):
            numbers = join((part & 15, part >> 4), -1).view(*part.shape[:3], rows).float()
            yield numbers.mul_(times).add_(plus).flatten(1, 2)  # in place


def needs_gradient(x):
    """Whether a gradient is to come back to x: packed products give none."""
    return x.requires_grad and torch.is_grad_enabled()


def of_strips(tokens, strips):
    """The product of tokens (n, n_in) with strips (n_strips, n_in, width): (n, n_strips * width)."""
    return torch.bmm(tokens.expand(len(strips), -1, -1), strips).transpose(0, 1).flatten(1)


@cache
def _order():
    # How PyTorch packs a matrix on this processor, found by trying: so many rows beside each other, and whether the two
    # halves of a byte are neighbours (stack) or half the rows apart (cat); None if it is packed in another way.
    matrix = Int4Matrix((torch.arange(BLOCK * GROUP) * 7 % 61).view(BLOCK, GROUP))
    expected = matrix._packed_product(torch.eye(GROUP)).float()
    for rows, join in ((64, torch.cat), (32, torch.cat), (32, torch.stack)):
        if torch.allclose(torch.cat([*next(matrix._strips(rows, join))], dim=1), expected, rtol=0.01, atol=0.1):
            return rows, join
    return None
