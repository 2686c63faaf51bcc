"""The exercises of notebook 02, RoPE: specification, cases, known mistakes with hints, check."""

from functools import partial

import torch

from checks.base import BATCH, MEMORY, Case, Exercise, draw, mutate, not_contiguous
from checks.judge import check_of


def rope_angles(positions, head_dim, theta):
    """Angle in radians (..., T, h/2) of pair i at each position: position / theta ** (2 i / head_dim), not wrapped."""
    i = torch.arange(head_dim // 2, dtype=torch.float64)
    speeds = 1 / theta ** (2 * i / head_dim)
    return (positions.double()[..., None] * speeds).float()


_angles = partial(mutate, rope_angles)

EXPONENT = "Is the exponent 2 i / head_dim, with i counted from 0 to head_dim / 2 - 1?"
ROWS = "Here each row of a batch has its own positions. Does every position get a dimension for the speeds at the end?"
TABLE = "This position is past the end of many tables of fixed length. Compute the angle instead."
ROPE_ANGLES = Exercise(
    rope_angles,
    [
        Case("positions 0, 1, 2 with head_dim 4 and theta 100", (torch.arange(3), 4, 100.0)),
        Case("positions 3, 0, 7, 11", (torch.tensor([3, 0, 7, 11]), 8, 100.0)),
        Case("head_dim 2", (torch.arange(4, 9), 2, 10000.0), "With head_dim 2 there is one pair, and its speed is 1."),
        Case("theta 500000", (torch.tensor([1, 501, 8001]), 16, 500000.0)),
        Case("theta as an int", (torch.tensor([1, 2]), 4, 10000), "Here theta is an int, not a float."),
        Case("int32 positions, not contiguous", (torch.arange(12, dtype=torch.int32)[::3], 8, 100.0), MEMORY),
        Case("positions of shape (2, 1, 4), head_dim 8", (torch.arange(3, 11).reshape(2, 1, 4), 8, 100.0), ROWS),
        Case("position 200000", (torch.tensor([200000]), 4, 500000.0), TABLE),
    ],
    [
        ("Do you use the positions given? These angles are of 0, 1, 2, ...",
         _angles("positions.double()", "torch.arange(positions.shape[-1]).expand_as(positions)")),
        ("Do you use the theta given, not a fixed 10000?", _angles("1 / theta", "1 / 10000.0")),
        (EXPONENT + " Yours looks like i / head_dim.", _angles("2 * i", "i")),
        ("Does the speed fall from pair to pair? Check the sign of the exponent.", _angles("1 / theta", "theta")),
        *[("Do brackets hold the exponent together? ** binds before * and /.",
           _angles("1 / theta ** (2 * i / head_dim)", speeds))
          for speeds in ("theta ** -2 * i / head_dim", "theta ** -(2 * i) / head_dim")],
        ("Does // round the exponent to a whole number? Use /.", _angles("2 * i / head_dim", "2 * i // head_dim")),
        ("Does the last exponent reach 1? It ends at (head_dim - 2) / head_dim.",
         _angles("2 * i / head_dim", "torch.linspace(0, 1, len(i))")),
        ("Is there one angle per pair? Count i from 0 to head_dim / 2 - 1.", _angles("head_dim // 2", "head_dim")),
        ("Is there one angle per pair? You return each twice.",  # as LlamaRotaryEmbedding does
         _angles("* speeds", "* speeds.repeat(2)")),
        ("Are the angles left unwrapped? No % (2 pi) here.", _angles("float()", "float() % (2 * torch.pi)")),
        ("Do the positions stay in float32? Half precision does not tell 8001 from 8000.",
         _angles("double()", "bfloat16()")),
    ],
    hints={"dtype": "The text asks for float32. Compute in float32 or finer, and convert at the end with .float()."},
)  # fmt: skip
check_rope_angles = check_of(ROPE_ANGLES)


HALVES = (  # how the pairs are cut out of x, and how they are put back
    lambda x: x.chunk(2, dim=-1),
    lambda a, b: torch.cat((a, b), dim=-1),
)
NEIGHBOURS = (
    lambda x: (x[..., 0::2], x[..., 1::2]),
    lambda a, b: torch.stack((a, b), dim=-1).flatten(-2),
)


def _turned(x, cos, sin, split, join):
    """The pairs (a, b) that split cuts out of x, turned, and put back by join."""
    a, b = split(x.double())
    return join(a * cos - b * sin, b * cos + a * sin).to(x.dtype)


def apply_rope_halves(x, cos, sin):
    """Turn pair (i, i + h/2) of x (B, H, T, h) by the angle i of each position; cos and sin (T, h/2)."""
    return _turned(x, cos, sin, *HALVES)


def apply_rope_interleaved(x, cos, sin):
    """Turn pair (2 i, 2 i + 1) of x (B, H, T, h) by the angle i of each position; cos and sin (T, h/2)."""
    return _turned(x, cos, sin, *NEIGHBOURS)


def _rope_inputs(batch, heads, tokens, head_dim, seed=0):
    angles = draw(tokens, head_dim // 2, seed=seed, scale=2.0)
    return draw(batch, heads, tokens, head_dim, seed=seed), angles.cos(), angles.sin()


def _rope_cases():
    small = torch.tensor([3.0, 5.0, 1.0, 2.0]).view(1, 1, 1, 4), torch.tensor([[0.6, 0.8]]), torch.tensor([[0.8, 0.6]])
    x, cos, sin = _rope_inputs(2, 3, 8, 8, 6)
    square = "Here are as many heads as tokens: the angles follow the tokens, not the heads."
    return [
        Case("x = 3, 5, 1, 2 at one position", small),
        Case("as many heads as tokens", _rope_inputs(1, 4, 4, 6, 2), square),
        Case("x of shape (2, 3, 5, 8)", _rope_inputs(2, 3, 5, 8, 1), BATCH),
        Case("x in bfloat16, cos and sin in float32", (x.bfloat16(), cos, sin),
             "Which dtype has bfloat16 times float32?"),
        Case("x in float16, cos and sin in float32", (x.half(), cos, sin),
             "Which dtype has float16 times float32? (bfloat16 on the way keeps 8 bits of a number, float16 11.)"),
        Case("x not contiguous", (not_contiguous(torch.cat((x, -x)), 1, 2), cos, sin), MEMORY),
        Case("gradients", _rope_inputs(1, 2, 3, 4, 7), gradients=1),  # of x: in a model cos and sin are tables
    ]  # fmt: skip


def _widened(x, cos, sin, split, join, widen):
    """The same another way: x cos + (-b, a) sin, with cos and sin as wide as x."""
    a, b = split(x)
    return x * widen(cos, cos) + join(-b, a) * widen(sin, sin)


def _rope_mistakes(layout, other, other_hint):
    (split, join), (other_split, other_join) = layout, other

    def bug(*changes, split=split, join=join):
        return partial(mutate(_turned, *changes), split=split, join=join)

    return [
        (other_hint, bug(split=other_split, join=other_join)),
        ("Is the sign of the sine flipped? That turns backwards.", bug("- b", "+ b", "+ a", "- a")),
        ("Is one minus sign missing? This is not a rotation.", bug("- b", "+ b")),
        ("Is the second member b cos + a sin? Your first members are right.",
         bug("b * cos + a * sin", "a * cos + b * sin")),
        ("Do you use the first member after it was changed? Keep the old value.",
         bug("+ a * sin", "+ (a * cos - b * sin) * sin")),
        ("Do you put the pairs back where they came from?", bug(join=other_join)),
        ("Do you take both members of a pair from the right places? Look at how you cut x.", bug(split=other_split)),
        ("torch.cat joins along the first dimension unless told dim=-1.", bug(join=lambda a, b: torch.cat((a, b)))),
        ("torch.stack makes a dimension more than x has. Where do both members of a pair belong?",
         bug(join=lambda a, b: torch.stack((a, b), -1))),
        # the two layouts mixed in transformers' form of the turn, x cos + rotate_half(x) sin
        ("Does angle i belong to pair i? Your cos and sin are widened for the other layout.",
         partial(_widened, split=split, join=join, widen=other_join)),
        ("Do the pairs fit the widened cos and sin? They belong to the other layout.",
         partial(_widened, split=other_split, join=other_join, widen=join)),
        ("Do the angles follow the tokens, not the heads?",
         lambda x, c, s: _turned(x, c[:, None], s[:, None], split, join)),
    ]  # fmt: skip


def _rope_exercise(specification, layout, other, other_hint):
    return Exercise(
        specification,
        _rope_cases(),
        _rope_mistakes(layout, other, other_hint),
        hints={"dtype": "The text asks for the dtype of x, whichever it is: .to(x.dtype) at the end."},
        tolerance=0.4,  # float16: 2e-3, where cos and sin in float16 are off by 7e-4 and a way by bfloat16 by 4e-3
    )


APPLY_ROPE_HALVES = _rope_exercise(
    apply_rope_halves, HALVES, NEIGHBOURS, "Do you pair neighbours (2i, 2i + 1)? Here i is paired with i + h/2."
)
check_apply_rope_halves = check_of(APPLY_ROPE_HALVES)
APPLY_ROPE_INTERLEAVED = _rope_exercise(
    apply_rope_interleaved, NEIGHBOURS, HALVES, "Do you pair the halves (i, i + h/2)? Here 2i is paired with 2i + 1."
)
check_apply_rope_interleaved = check_of(APPLY_ROPE_INTERLEAVED)


def rope_permutation(weight, head_dim):
    """Rows of weight (heads * h, D) reordered within each head: pairs (2i, 2i + 1) become (i, i + h/2)."""
    rows = []
    for head in range(len(weight) // head_dim):
        first = head * head_dim
        rows += [weight[first + 2 * i] for i in range(head_dim // 2)]
        rows += [weight[first + 2 * i + 1] for i in range(head_dim // 2)]
    return torch.stack(rows)


def _order(head_dim):
    return torch.cat((torch.arange(0, head_dim, 2), torch.arange(1, head_dim, 2)))


def _by_head(weight, head_dim, order):
    return weight.reshape(-1, head_dim, weight.shape[-1])[:, order].reshape(weight.shape)


HEADS = "Here are several heads, and each is reordered on its own."
ROPE_PERMUTATION = Exercise(
    rope_permutation,
    [
        Case("rows 0 to 5, one head of 6", (torch.arange(6.0)[:, None], 6)),
        Case("three heads of 8, weight (24, 5)", (draw(24, 5, seed=1), 8), HEADS),
        Case("float16, heads of 4", (draw(8, 3, seed=5).half(), 4)),
        Case("weight not contiguous", (not_contiguous(draw(8, 3, seed=6)), 8), MEMORY),
    ],
    [
        ("Where are the other heads? Your result holds the rows of one.", lambda w, h: w[_order(h)]),
        ("Is each head reordered? Yours is only the first head.", lambda w, h: torch.cat((w[_order(h)], w[h:]))),
        ("Is this the way back, from halves to interleaved? The other direction is asked.",
         lambda w, h: _by_head(w, h, _order(h).argsort())),
        ("Is each head reordered on its own? You reorder all rows at once.", lambda w, h: w[_order(len(w))]),
        ("Do you reorder rows, not columns?", lambda w, h: w[:, _order(w.shape[-1])]),
        ("Do the even rows come first, the odd ones after?", lambda w, h: _by_head(w, h, _order(h).roll(h // 2))),
        ("Is a reshape to (heads * h, D) missing at the end?",
         lambda w, h: w.reshape(-1, h // 2, 2, w.shape[-1]).transpose(1, 2)),
        ("Does every row stay in its head? The dimension of the heads keeps its place.",
         lambda w, h: w.reshape(-1, h // 2, 2, w.shape[-1]).transpose(0, 1).reshape(w.shape)),
        ("Does every row stay whole? The last dimension keeps its place.",
         lambda w, h: w.reshape(-1, h // 2, 2, w.shape[-1]).transpose(2, 3).reshape(w.shape)),
        ("Has the result a dimension more than weight? A last reshape to weight.shape, or torch.cat, joins the rows.",
         lambda w, h: w.reshape(-1, h, w.shape[-1])[:, _order(h)]),
        # the conversion script of transformers counts heads in its `permute`
        ("How many rows has a head? Yours takes the number of heads for their width.",
         lambda w, h: torch.cat([torch.cat((part[::2], part[1::2])) for part in w.split(len(w) // h)])),
    ],
)  # fmt: skip
check_rope_permutation = check_of(ROPE_PERMUTATION)
