"""Exercise 2 of notebook 02, the turn, and its twin for the other layout: cases, known mistakes with hints, checks."""

from functools import partial

import torch

from checks.base import BATCH, MEMORY, Case, Exercise, draw, mutate, strided
from checks.judge import check_of

# how the pairs are cut out of x, and how they are put back
HALVES = lambda x: x.chunk(2, dim=-1), lambda a, b: torch.cat((a, b), dim=-1)
NEIGHBOURS = lambda x: (x[..., 0::2], x[..., 1::2]), lambda a, b: torch.stack((a, b), dim=-1).flatten(-2)


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
    x, cos, sin = _rope_inputs(2, 5, 40, 64, 6)
    square = "Here are as many heads, and as many sequences, as tokens: the angles follow the tokens."
    return [
        Case("x = 3, 5, 1, 2 at one position", small),
        Case("as many heads and sequences as tokens", _rope_inputs(4, 4, 4, 6, 2), square),
        Case("x of shape (2, 5, 40, 64) in float64", (x.double() * torch.arange(40).ne(3)[:, None], cos, sin), BATCH),
        Case("x in bfloat16, cos and sin in float32", ((1e5 * x).bfloat16(), cos, sin),
             "Which dtype has bfloat16 times float32? (float16 on the way ends at 65504, bfloat16 at 3e38.)"),
        Case("x in float16, cos and sin in float32", (x.half(), cos, sin),
             "Which dtype has float16 times float32? (bfloat16 on the way keeps 8 bits of a number, float16 11.)"),
        Case("x not contiguous", (strided(x.double(), 1, 2), cos.flip(0), sin.flip(0)), MEMORY),
        # of x: in a model cos and sin are tables
        Case("gradients", _rope_inputs(2, 2, 3, 2, 7), gradients=1, also="half, meta"),
    ]  # fmt: skip


def _rope_mistakes(layout, other, other_hint):
    (split, join), (other_split, other_join) = layout, other

    def bug(*changes, split=split, join=join):
        return partial(mutate(_turned, *changes), split=split, join=join)

    def widened(split, join, widen):  # x cos + (-b, a) sin, with cos and sin as wide as x
        return lambda x, c, s: x * widen(c, c) + join(-split(x)[1], split(x)[0]) * widen(s, s)

    return [
        (other_hint, bug(split=other_split, join=other_join)),
        ("Is the sign of the sine flipped? That turns backwards.", bug("- b", "+ b", "+ a", "- a")),
        ("Is one minus sign missing? This is not a rotation.", bug("- b", "+ b")),
        ("Is the second member b cos + a sin? The first are right.", bug("b * cos + a * sin", "a * cos + b * sin")),
        ("Do you use the first member after it was changed?", bug("+ a * sin", "+ (a * cos - b * sin) * sin")),
        ("Do you put the pairs back where they came from?", bug(join=other_join)),
        ("Do you take both members of a pair from the right places? Look at how you cut x.", bug(split=other_split)),
        ("torch.cat joins along the first dimension unless told dim=-1.", bug(join=lambda a, b: torch.cat((a, b)))),
        ("torch.stack makes a dimension more than x has.", bug(join=lambda a, b: torch.stack((a, b), -1))),
        # the two layouts mixed in transformers' form of the turn, x cos + rotate_half(x) sin
        ("Does angle i belong to pair i? Yours are widened for the other layout.", widened(split, join, other_join)),
        ("Do the pairs fit the widened cos and sin, of the other layout?", widened(other_split, other_join, join)),
        ("Do angles follow tokens, not heads?", lambda x, c, s: _turned(x, c[:, None], s[:, None], split, join)),
    ]  # fmt: skip


def _check(specification, *layouts):
    mistakes = _rope_mistakes(*layouts)
    # float16: 2e-3, where cos and sin in float16 are off by 7e-4 and a way by bfloat16 by 4e-3
    return check_of(Exercise(specification, _rope_cases(), mistakes, tolerance=0.4))


PAIR_NEIGHBOURS = "Do you pair neighbours (2i, 2i + 1)? Here i is paired with i + h/2."
PAIR_HALVES = "Do you pair the halves (i, i + h/2)? Here 2i is paired with 2i + 1."
check_apply_rope_halves = _check(apply_rope_halves, HALVES, NEIGHBOURS, PAIR_NEIGHBOURS)
check_apply_rope_interleaved = _check(apply_rope_interleaved, NEIGHBOURS, HALVES, PAIR_HALVES)
