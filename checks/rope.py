"""Two exercises of notebook 02, RoPE: the angles, and the order of rows. apply_rope.py has the turn."""

from functools import partial

import torch

from checks.base import Case, Exercise, Harness, draw, mutate, strided
from checks.judge import check_of


def rope_angles(positions, head_dim, theta):
    """Angle in radians (..., T, h/2) of pair i at each position: position / theta ** (2 i / head_dim), not wrapped."""
    i = torch.arange(head_dim // 2, dtype=torch.float64, device=positions.device)
    speeds = 1 / theta ** (2 * i / head_dim)
    return (positions.double()[..., None] * speeds).float()


_angles = partial(mutate, rope_angles)

EXPONENT = "Is the exponent 2 i / head_dim, with i counted from 0 to head_dim / 2 - 1?"
ROWS = "Here each row of a batch has its own positions. Does every position get a dimension for the speeds at the end?"
TABLE = "These positions are past the end of many tables, or before their beginning. Compute the angle instead."
check_rope_angles = check_of(Exercise(rope_angles, [
    Case("positions 0, 1, 2 with head_dim 4 and theta 100", (torch.arange(3), 4, 100.0)),
    Case("positions 3, 0, 7, 11, theta 12.3", (torch.tensor([3, 0, 7, 11]), 8, 12.3)),
    Case("head_dim 2", (torch.arange(4, 9), 2, 10000.0), "With head_dim 2 there is one pair, and its speed is 1."),
    Case("theta 500000", (torch.tensor([1, 501, 8001]), 128, 500000.0)),
    Case("theta as an int", (torch.tensor([[2]]), 4, 10000), "Is theta an int? Has one position both axes?"),
    Case("int32 positions from -600, each third", (torch.arange(-600, 600, dtype=torch.int32)[::3], 8, 12.3), TABLE),
    Case("positions of shape (2, 1, 4), not contiguous",
         (strided(torch.tensor([[[3, 0, 0, 9]], [[0, 1, 2, 701]]]), 0, 2), 6, 100.0), ROWS, also="meta"),
    # of the same number as in the first case, and past what float16, int16 and tables hold
    Case("positions 7, 200000, 12000000", (torch.tensor([7, 200000, 12000000]), 4, 100.0), TABLE),
    Case("positions of shape (3, 200)", (torch.arange(600).view(3, 200).flip(0) * 10, 8, 100.0), ROWS),
    Case("positions on another device", (torch.arange(3, device="meta"), 4, 100.0)),
], [  # known mistakes
    ("Do you use the positions given? These angles are of 0, 1, 2, ...",
     _angles("positions.double()", "torch.arange(positions.shape[-1]).expand_as(positions)")),
    ("Do you take the positions as they are? Yours are counted from the first of them.",
     _angles("positions.double()", "(positions - positions[..., :1]).double()")),
    ("Do you use the theta given, not a fixed 10000?", _angles("1 / theta", "1 / 10000.0")),
    (EXPONENT + " Yours looks like i / head_dim.", _angles("2 * i", "i")),
    ("Does the speed fall from pair to pair? Check the sign of the exponent.", _angles("1 / theta", "theta")),
    *[("Do brackets hold the exponent together? ** binds before * and /.",
       _angles("1 / theta ** (2 * i / head_dim)", speeds))
      for speeds in ("theta ** -2 * i / head_dim", "theta ** -(2 * i) / head_dim")],
    ("Does // round the exponent to a whole number? Use /.", _angles("2 * i / head_dim", "2 * i // head_dim")),
    ("Does the last exponent reach 1? It must not.", _angles("2 * i / head_dim", "torch.linspace(0, 1, len(i))")),
    ("Is there one angle per pair? You return each twice.", _angles("* speeds", "* speeds.repeat(2)")),
    ("Are the angles left unwrapped? No % (2 pi) here.", _angles("float()", "float() % (2 * torch.pi)")),
    ("Do the positions stay in float32? In bfloat16 8001 is 8000.", _angles("double()", "bfloat16()")),
], harness=Harness(angles=True)))  # fmt: skip


def rope_permutation(weight, head_dim):
    """Rows of weight (heads * h, D) reordered within each head: pairs (2i, 2i + 1) become (i, i + h/2)."""
    return _by_head(weight, head_dim, _order(head_dim))


def _order(head_dim):
    return torch.cat((torch.arange(0, head_dim, 2), torch.arange(1, head_dim, 2)))


def _by_head(weight, head_dim, order):
    return weight.reshape(-1, head_dim, weight.shape[-1])[:, order].reshape(weight.shape)


HEADS = "Here are several heads, and each is reordered on its own."
check_rope_permutation = check_of(Exercise(rope_permutation, [
    Case("rows 0 to 11, two heads of 6", (torch.arange(12.0)[:, None], 6)),
    Case("65 heads of 6, weight (390, 5), float64", (draw(390, 5, seed=1).double() / 3, 6), HEADS, also="meta"),
    Case("float16, as many rows, heads of 2", (draw(12, 3, seed=5).half(), 2)),
    Case("one head of 16, D 16, not contiguous, bfloat16", (strided(draw(16, 16, seed=6, scale=1e5).bfloat16()), 16),
         "Here is one head, of 16 rows. Is the order made from head_dim, and do the strides of the weight not matter?"),
], [  # known mistakes
    ("Is each head reordered? Yours is only the first head.", lambda w, h: torch.cat((w[_order(h)], w[h:]))),
    ("Is this the way back, from halves to neighbours?", lambda w, h: _by_head(w, h, _order(h).argsort())),
    ("Is each head reordered on its own? You reorder all rows at once.", lambda w, h: w[_order(len(w))]),
    ("Do you reorder rows, not columns?", lambda w, h: w[:, _order(w.shape[-1])]),
    ("Do the even rows come first, the odd ones after?", lambda w, h: _by_head(w, h, _order(h).roll(h // 2))),
    ("Does every row stay in its head? The dimension of the heads keeps its place.",
     lambda w, h: w.reshape(-1, h // 2, 2, w.shape[-1]).transpose(0, 1).reshape(w.shape)),
    ("Does every row stay whole?", lambda w, h: w.reshape(-1, h // 2, 2, w.shape[-1]).transpose(2, 3).reshape(w.shape)),
    ("How many rows has a head? Yours takes the number of heads for their width.",  # as in transformers' `permute`
     lambda w, h: torch.cat([torch.cat((part[::2], part[1::2])) for part in w.split(len(w) // h)])),
], tolerance=0))  # fmt: skip # the rows are the same, to the last bit
